"""Context positions in buckets that double: damage that only long contexts show is not averaged away."""

from collections.abc import Sequence
from itertools import pairwise

from kvasir.lab.document import I64

_FIRST = 128


def filled_buckets(indices: Sequence[I64]) -> list[tuple[int, int]]:
    """Half-open ranges [0, 128), [128, 256), [256, 512), ... up to the largest of ``indices``, without empty ones.

    A last range of less than a quarter of its width joins the one before it.
    """
    last = max(int(document.max()) for document in indices)
    edges = [0]
    width = _FIRST
    while edges[-1] <= last:
        edges.append(width)
        width *= 2
    edges[-1] = last + 1
    if len(edges) > 2 and 4 * (edges[-1] - edges[-2]) < edges[-2]:
        del edges[-2]
    return [
        (start, end)
        for start, end in pairwise(edges)
        if any(bool(((document >= start) & (document < end)).any()) for document in indices)
    ]


def bucket_name(bucket: tuple[int, int]) -> str:
    return f"tokens {bucket[0]} to {bucket[1] - 1}"
