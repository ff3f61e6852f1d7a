"""Haystacks: filler of a wanted length with needles at wanted depths, measured in the model's own tokens."""

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle

TokenCounter = Callable[[str], int]

NOISE = (
    "Rain falls on the roof.",
    "The cat sleeps by the door.",
    "Clouds drift over the hill.",
    "A cart rolls down the lane and comes back again.",
)
"""The dullest filler: the same few sentences for ever."""


def approximate_tokens(text: str) -> int:
    """For servers, whose tokenizer is not known: four characters a token, as English has it."""
    return max(1, len(text) // 4)


def noise() -> Iterable[str]:
    return cycle(NOISE)


def haystack(filler: Iterable[str], needles: Sequence[tuple[float, str]], num_tokens: int, count: TokenCounter) -> str:
    """About ``num_tokens`` of ``filler`` with each needle at its depth in [0, 1]; longer only where the needles are.

    Depth is a share of the filler's sentences; needles of one depth follow each other in their order.
    """
    room = num_tokens - sum(count(f" {text}") for _, text in needles)
    sentences: list[str] = []
    for sentence in filler:
        room -= count(f" {sentence}")
        if room < 0:
            break
        sentences.append(sentence)
    placed: list[str] = []
    done = 0
    for depth, text in sorted(needles, key=lambda needle: needle[0]):
        until = round(depth * len(sentences))
        placed += [*sentences[done:until], text]
        done = max(done, until)
    return " ".join([*placed, *sentences[done:]])


def spread(num: int, first: float = 0.0, last: float = 1.0) -> list[float]:
    """``num`` depths from ``first`` to ``last``, evenly."""
    if num == 1:
        return [(first + last) / 2.0]
    return [first + (last - first) * i / (num - 1) for i in range(num)]
