"""A text to be read by a model token by token, and what was found while it read."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Token ids with the stretches that are scored.

    ``scored``: half-open ranges of token indices whose prediction is looked at, in order and apart.  The token at index
    i is predicted by the logits at i - 1, so no range starts before 1.
    ``num_pinned``: how many tokens at the beginning are instructions.
    ``num_decoded``: how many tokens at the end are fed one by one, as decoding does it; the others are a prompt.

    token_ids:  [ prompt ............................ | decoded ... ]
                       scored: [a, b)        [c, ......................, d)
    """

    token_ids: tuple[int, ...]
    scored: tuple[tuple[int, int], ...]
    num_decoded: int = 1
    num_pinned: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.num_decoded < len(self.token_ids):
            raise ValueError(f"{self.num_decoded} of {len(self.token_ids)} tokens cannot be decoded")
        edge = 1
        for start, end in self.scored:
            if not edge <= start < end <= len(self.token_ids):
                raise ValueError(f"[{start}, {end}) cannot be scored in a document of {len(self.token_ids)} tokens")
            edge = end

    @property
    def num_scored(self) -> int:
        return sum(end - start for start, end in self.scored)

    def scored_indices(self) -> I64:
        """Indices of the scored tokens, in order."""
        if not self.scored:
            return np.zeros(0, dtype=np.int64)
        return np.concatenate([np.arange(start, end) for start, end in self.scored])


def whole(token_ids: tuple[int, ...], *, start: int = 1, num_decoded: int = 1) -> Document:
    """A document that is scored from token ``start`` to its end."""
    return Document(token_ids=token_ids, scored=((start, len(token_ids)),), num_decoded=num_decoded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What one subject made of one document; all arrays are over its scored tokens, in order.

    ``nll``: minus the natural logarithm of the true token's probability.  ``kl``: KL(reference || subject) of the whole
    distribution, in nats; zeros for the reference itself.  ``is_same_best``: both find the same token likeliest.
    """

    indices: I64
    nll: F64
    kl: F64
    is_same_best: NDArray[np.bool_]
    is_decoded: NDArray[np.bool_]

    def between(self, start: int, end: int) -> NDArray[np.bool_]:
        """Mask of the scored tokens with an index in [start, end)."""
        return (self.indices >= start) & (self.indices < end)
