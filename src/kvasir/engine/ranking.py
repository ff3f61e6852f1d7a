"""The best tokens of each row of logits, exactly sorted, without sorting the vocabulary."""

import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

_PAD = np.uint64(0xFFFFFFFFFFFFFFFF)
_SIGN = np.int32(-(1 << 31))
_LOW, _HIGH = (0, 1) if sys.byteorder == "little" else (1, 0)
# Tokens that share one maximum when a threshold is looked for: small enough that ``at_least`` can be in the thousands.
_BLOCK = 16


@dataclass(slots=True)
class Ranked:
    """Upper sets of rows, best first: by logit, equal logits by lower id.

    ``ids`` and ``logits`` are [R, W]; row r uses the first ``counts[r]`` entries, the rest is id 0 with logit -inf.
    Every token outside a row's set is worse than every token in it.
    """

    ids: I64
    logits: F32
    counts: I64


def rank_best(logits: F32, at_least: int) -> Ranked:
    """The best ``at_least`` tokens of each row of ``logits`` [R, V] (or all V), and those equal to or just below them.

    A threshold is found from the maxima of small blocks: ``at_least`` blocks reach it, so as many tokens do.
    Rows must be free of NaN.
    """
    num_rows, vocab_size = logits.shape
    num_blocks = vocab_size // _BLOCK
    if at_least > num_blocks:
        keys = _keys(logits, np.arange(vocab_size))
        counts = np.full(num_rows, vocab_size)
    else:
        # A block takes every num_blocks-th token, so that the maximum runs along contiguous memory.
        maxima = logits[:, : num_blocks * _BLOCK].reshape(num_rows, _BLOCK, num_blocks).max(axis=1)
        threshold = np.partition(maxima, num_blocks - at_least, axis=1)[:, num_blocks - at_least]
        keys, counts = _gather(logits, np.flatnonzero(logits >= threshold[:, None]))
    return _ranked(keys, counts)


def rank_entries(logits: F32, flat: I64) -> Ranked:
    """The entries ``flat`` (ascending) of ``logits`` [R, V], each row's own, best first; other entries are left out."""
    return _ranked(*_gather(logits, flat))


def _ranked(keys: U64, counts: I64) -> Ranked:
    # One sort of 64-bit integers orders by logit and then by id; keys are unique, so stability does not matter.
    keys.sort(axis=1)
    best, ids = _unpack(keys)
    is_pad = np.arange(keys.shape[1]) >= counts[:, None]
    best[is_pad] = -np.inf
    ids[is_pad] = 0
    return Ranked(ids=ids, logits=best, counts=counts)


def _gather(logits: F32, flat: I64) -> tuple[U64, I64]:
    """The keys of the entries ``flat`` of ``logits`` (ascending), padded to the longest row, and the rows' lengths."""
    num_rows, vocab_size = logits.shape
    rows = flat // vocab_size
    counts = np.bincount(rows, minlength=num_rows)
    starts = np.cumsum(counts) - counts
    keys = np.full((num_rows, int(counts.max())), _PAD)
    keys[rows, np.arange(len(flat)) - starts[rows]] = _keys(logits.reshape(-1)[flat], flat - rows * vocab_size)
    return keys, counts


def _keys(values: F32, ids: I64) -> U64:
    """64-bit integers that sort by value, largest first, then by id; ``ids`` broadcasts to the shape of ``values``."""
    bits = (values + np.float32(0.0)).view(np.int32)  # -0.0 becomes 0.0: the two are equal
    # Flipping the sign bit of positive floats and all bits of negative ones makes their order that of integers.
    ascending = bits ^ (bits >> 31 | _SIGN)
    keys = np.empty(values.shape, dtype=np.uint64)
    halves = keys.view(np.int32).reshape(*values.shape, 2)
    halves[..., _HIGH] = ~ascending
    halves[..., _LOW] = ids
    return keys


def _unpack(keys: U64) -> tuple[F32, I64]:
    """The values and ids that ``_keys`` packed."""
    halves = keys.view(np.int32).reshape(*keys.shape, 2)
    ascending = ~halves[..., _HIGH]
    bits = ascending ^ (~ascending >> 31 | _SIGN)
    return bits.view(np.float32), halves[..., _LOW].astype(np.int64)
