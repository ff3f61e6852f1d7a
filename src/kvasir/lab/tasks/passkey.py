"""Passkey: one number in a text of nothing (after Mohtashami and Jaggi, arXiv 2305.16300; wording ours)."""

import random

from kvasir.lab.tasks.haystack import TokenCounter, haystack, noise
from kvasir.lab.tasks.sample import Sample

KEY_DIGITS = 5


def digits(rng: random.Random, num: int) -> str:
    """A number of ``num`` different digits that does not begin with 0, so that no digit of it stands for another."""
    found = rng.sample("0123456789", num)
    return "".join(found) if found[0] != "0" else "".join(reversed(found))


def passkey(length: int, depth: float, seed: int, count: TokenCounter) -> Sample:
    """A prompt of about ``length`` tokens with the key at ``depth``."""
    key = digits(random.Random(seed), KEY_DIGITS)
    opening = "A pass key is hidden in the text below. Find it and remember it.\n\n"
    question = "\n\nWhat is the pass key? Answer with the number."
    needle = f"The pass key is {key}. Remember it. {key} is the pass key."
    room = length - count(opening) - count(question)
    text = haystack(noise(), [(depth, needle)], room, count)
    return Sample(
        task="passkey",
        prompt=opening + text + question,
        answers=(key,),
        lead="The pass key is",
        length=length,
        depth=depth,
        max_tokens=32,
    )
