"""Draws from wide kept sets, thousands of tokens, without sorting them: by the mass of bins of neighbouring logits.

The order is that of ``ranking``, best first, so the token is the one a full sort would give; only the two bins that
decide are sorted.  ``numpy.bincount`` adds a row's weights in order of their ids, whatever rows are binned with it.
"""

import numpy as np
from numpy.typing import NDArray

from kvasir.engine.draw_rows import F64, DrawRows
from kvasir.engine.ranking import F32, I64, rank_entries

# Bins of equal width from the best token down to e^-32 of its weight; the last one takes all below.
_NUM_BINS, _SPAN = 4096, 32.0
_TILE_ELEMENTS = 1 << 18


def draw_wide(rows: DrawRows, mass: F64) -> I64:
    """One token id per row.  ``rows`` have no top-k limit; ``mass`` [R] is the row's whole weight where there is no
    min-p, else NaN."""
    tokens = np.empty(len(rows.logits), dtype=np.int64)
    size = max(1, _TILE_ELEMENTS // rows.vocab_size)
    for start in range(0, len(tokens), size):
        part = np.arange(start, min(start + size, len(tokens)))
        tokens[part] = _draw_tile(rows.select(part), mass[part])
    return tokens


def _draw_tile(rows: DrawRows, mass: F64) -> I64:
    bins, cumulated = _bin_masses(rows)
    at = np.arange(len(bins))
    total = cumulated[:, -1]
    last_bin = (cumulated < total[:, None]).sum(axis=1)
    wanted = rows.top_p * np.where(np.isnan(mass), total, mass)
    edge = np.minimum((cumulated < wanted[:, None]).sum(axis=1), last_bin)
    is_cut = rows.top_p < 1.0
    edge = np.where(is_cut, edge, last_bin)
    # The mass of the nucleus: up to the first token of the edge's bin with which it is reached.
    _, running, num_positive = _inside(rows, bins, cumulated, edge)
    num_kept = np.minimum(1 + (running < wanted[:, None]).sum(axis=1), num_positive)
    kept_mass = np.where(is_cut, running[at, num_kept - 1], total)

    target = rows.uniforms * kept_mass
    chosen = np.minimum((cumulated <= target[:, None]).sum(axis=1), edge)
    ids, running, num_positive = _inside(rows, bins, cumulated, chosen)
    limit = np.where(is_cut & (chosen == edge), num_kept, num_positive)
    return ids[at, np.minimum((running <= target[:, None]).sum(axis=1), limit - 1)]


def _bin_masses(rows: DrawRows) -> tuple[NDArray[np.int32], F64]:
    """The bin of each token [R, V], and the mass up to and with each bin [R, _NUM_BINS]."""
    weights = _weights(rows.logits, rows)
    with np.errstate(over="ignore"):
        depth = (rows.maxima[:, None] - rows.logits) / rows.temperature[:, None] * np.float32(_NUM_BINS / _SPAN)
    bins = np.minimum(depth, np.float32(_NUM_BINS - 1)).astype(np.int32)
    flat = bins + (np.arange(len(bins), dtype=np.int32) * _NUM_BINS)[:, None]
    masses = np.bincount(flat.ravel(), weights.ravel(), minlength=len(bins) * _NUM_BINS)
    return bins, np.cumsum(masses.reshape(len(bins), _NUM_BINS), axis=1, dtype=np.float64)


def _inside(rows: DrawRows, bins: NDArray[np.int32], cumulated: F64, chosen: I64) -> tuple[I64, F64, I64]:
    """The tokens of one bin a row, best first: ids [R, W], the mass up to and with each, how many can be drawn.

    Entries behind a row's own tokens repeat its last mass."""
    ranked = rank_entries(rows.logits, np.flatnonzero(bins == chosen[:, None].astype(np.int32)))
    weights = _weights(ranked.logits, rows)
    before = np.where(chosen > 0, cumulated[np.arange(len(chosen)), chosen - 1], 0.0)
    running = before[:, None] + np.cumsum(weights, axis=1, dtype=np.float64)
    return ranked.ids, running, np.maximum((weights > 0.0).sum(axis=1), 1)


def _weights(logits: F32, rows: DrawRows) -> F32:
    """Weights relative to the best token's; 0 for what min-p rules out."""
    with np.errstate(over="ignore"):  # a tiny temperature: minus infinity is what is meant
        weights = np.exp((logits - rows.maxima[:, None]) / rows.temperature[:, None])
    if (rows.min_p > 0.0).any():
        weights[weights < rows.min_p[:, None]] = 0.0
    return weights
