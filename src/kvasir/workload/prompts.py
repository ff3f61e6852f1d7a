"""Prompts made from a seed: the same text on every machine, and no two seeds alike."""

import random
from collections.abc import Callable

_SUBJECTS = (
    "the old bridge",
    "a small harbour",
    "our neighbour",
    "the night train",
    "every winter garden",
    "a patient teacher",
    "the north wind",
    "this narrow street",
    "the baker's daughter",
    "a quiet library",
    "the last ferry",
    "an honest map",
    "the wooden clock",
    "a young carpenter",
    "the mountain village",
    "that long letter",
)
_VERBS = (
    "remembers",
    "carries",
    "follows",
    "repairs",
    "keeps",
    "finds",
    "describes",
    "crosses",
    "paints",
    "counts",
    "questions",
    "protects",
    "measures",
    "opens",
    "answers",
    "returns",
)
_OBJECTS = (
    "the colour of the river",
    "a promise made in spring",
    "every stone of the wall",
    "the price of fresh bread",
    "a song about the sea",
    "the names of the islands",
    "three ways home",
    "the weight of the rain",
    "an unfinished drawing",
    "the shape of the coast",
    "a box of dry seeds",
    "the light in the window",
    "some very good advice",
    "the rules of the game",
    "a road without signs",
    "the first day of school",
)
_ENDINGS = (
    "before the market closes",
    "because nobody else will",
    "when the tide is low",
    "after many years",
    "without any hurry",
    "as if it were simple",
    "until the lamps go out",
    "in spite of the weather",
)


def make_text(num_sentences: int, seed: int) -> str:
    """English-looking sentences; ``num_sentences`` of them."""
    rng = random.Random(seed)
    sentences = []
    for _ in range(num_sentences):
        words = (rng.choice(_SUBJECTS), rng.choice(_VERBS), rng.choice(_OBJECTS), rng.choice(_ENDINGS))
        sentence = " ".join(words)
        sentences.append(sentence[0].upper() + sentence[1:] + ".")
    return " ".join(sentences)


def make_text_of(num_tokens: int, seed: int, count_tokens: Callable[[str], int]) -> str:
    """The shortest such text with at least ``num_tokens`` tokens; a sentence is about 14."""
    num_sentences = max(1, num_tokens // 20)
    while count_tokens(text := make_text(num_sentences, seed)) < num_tokens:
        num_sentences += 1
    return text


def make_token_ids(num_tokens: int, seed: int, *, first_id: int, last_id: int) -> tuple[int, ...]:
    """Random ids in ``[first_id, last_id]``, for loads where only lengths matter."""
    return tuple(random.Random(seed).choices(range(first_id, last_id + 1), k=num_tokens))
