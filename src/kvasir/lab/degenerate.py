"""What broken text looks like, in numbers: repetition, compressibility, loops, the point where two texts part."""

import zlib
from collections.abc import Sequence

LOOP_PERIOD = 64
LOOP_TIMES = 3
_MIN_LOOP_TOKENS = 12
"""Shorter repetition at an end is an ordinary list or a row of dots."""


def repeated_share(tokens: Sequence[object], n: int) -> float:
    """Share of n-grams that occurred before in the same text; 0 for texts shorter than n."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def distinct_share(tokens: Sequence[object], n: int) -> float:
    return 1.0 - repeated_share(tokens, n)


def zlib_ratio(text: str) -> float:
    """Bytes over compressed bytes: about 2 for a few hundred characters of English, far above it for repetition."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 1.0


def has_loop(tokens: Sequence[object]) -> bool:
    """The text ends in some stretch of at most ``LOOP_PERIOD`` tokens, ``LOOP_TIMES`` times in a row."""
    for period in range(1, min(LOOP_PERIOD, len(tokens) // LOOP_TIMES) + 1):
        times = max(LOOP_TIMES, -(-_MIN_LOOP_TOKENS // period))
        tail = list(tokens[-period * times :])
        if len(tail) == period * times and all(tail[i] == tail[i - period] for i in range(period, len(tail))):
            return True
    return False


def first_difference(ours: Sequence[object], theirs: Sequence[object]) -> int | None:
    """Index where the two texts part; None when they are the same."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return i
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))
