"""Common words after RULER: a long numbered list in which a few words come again and again; which are they?"""

import random
from collections.abc import Iterator

from kvasir.lab.tasks.haystack import TokenCounter
from kvasir.lab.tasks.sample import Sample

NUM_COMMON = 5
_MOST_TIMES, _LEAST_TIMES = 10, 3
_COMMON_SHARE = 0.5
"""Of the list's tokens, at most; below it common words come ten times each."""
_ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "fl",
    "g",
    "gr",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
)
_VOWELS = ("a", "e", "i", "o", "u")
_ENDS = ("ck", "ft", "ld", "mp", "nd", "ng", "nt", "rk", "rm", "sh", "st", "th")


def common_words(length: int, seed: int, count: TokenCounter) -> Sample:
    """``NUM_COMMON`` made-up words come up to ten times (never less than three), all others once."""
    rng = random.Random(seed)
    words = _words(rng)
    common = [next(words) for _ in range(NUM_COMMON)]
    opening = "Below is a numbered list of words. Some words come much more often than the others.\n\n"
    question = f"\n\nWhich {NUM_COMMON} words come most often? Answer with the words only."
    room = length - count(opening + question)
    once = sum(count(_entry(99, word)) for word in common)
    times = max(_LEAST_TIMES, min(_MOST_TIMES, int(room * _COMMON_SHARE) // once))
    listed = common * times
    room -= once * times
    while (word := next(words)) and (room := room - count(_entry(len(listed) + 1, word))) >= 0:
        listed.append(word)
    rng.shuffle(listed)
    return Sample(
        task="common words",
        prompt=opening + "".join(_entry(number, word) for number, word in enumerate(listed, 1)).strip() + question,
        answers=tuple(common),
        lead="The most common words are",
        length=length,
        max_tokens=64,
    )


def _entry(number: int, word: str) -> str:
    return f" {number}. {word}"


def _words(rng: random.Random) -> Iterator[str]:
    """Pronounceable words of no language, each once."""
    seen: set[str] = set()
    while True:
        syllables = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(2)]
        word = "".join(syllables) + rng.choice(_ENDS)
        if word not in seen:
            seen.add(word)
            yield word
