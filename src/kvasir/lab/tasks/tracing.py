"""Variable tracking after RULER: a chain of assignments scattered over noise; which names carry the first value?"""

import random
import string
from itertools import pairwise

from kvasir.lab.tasks.haystack import TokenCounter, haystack, noise, spread
from kvasir.lab.tasks.sample import Sample

NUM_HOPS = 4
_NAME_LETTERS = 5


def variable_tracking(length: int, seed: int, count: TokenCounter) -> Sample:
    """One chain of ``NUM_HOPS`` hops; one worked example comes first, as in RULER."""
    rng = random.Random(seed)
    example, example_names, example_value = _chain(rng)
    chain, names, value = _chain(rng)
    shown = (
        "Below are assignments of variables, hidden among other sentences. Follow them and name every variable that "
        f"holds a given value.\n\nExample: {' '.join(example)}\nQuestion: which variables hold the value "
        f"{example_value}?\nAnswer: {' '.join(example_names)}\n\nNow the text: "
    )
    question = f"\n\nQuestion: which variables hold the value {value}? Answer with the names only."
    needles = list(zip(spread(len(chain), 0.05, 0.95), chain, strict=True))
    text = haystack(noise(), needles, length - count(shown + question), count)
    return Sample(
        task="variable tracking",
        prompt=shown + text + question,
        answers=names,
        lead="Answer:",
        length=length,
        max_tokens=64,
    )


def _chain(rng: random.Random) -> tuple[list[str], tuple[str, ...], str]:
    """Assignments in order, the names that all end up with the same value, and the value."""
    names = tuple("".join(rng.sample(string.ascii_uppercase, _NAME_LETTERS)) for _ in range(NUM_HOPS + 1))
    value = str(rng.randint(10000, 99999))
    first = f"VAR {names[0]} = {value}."
    return [first, *(f"VAR {later} = VAR {earlier}." for earlier, later in pairwise(names))], names, value
