"""Draws one token from each row of logits: temperature, min-p, top-k, top-p, then the inverse of the cumulated weights.

Every sum has an order fixed by the row alone, so a row's token does not depend on which rows it is drawn with.
numpy, not torch: its element-wise loops and sums never change with the number of rows or threads.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvasir.engine.draw_rows import F64, DrawRows
from kvasir.engine.ranking import F32, I64, Ranked, rank_best
from kvasir.engine.wide_draw import draw_wide

# How many of the best tokens are sorted first; rows whose kept set is wider go on to the next stage, then to bins.
STAGES = (256,)
# Tokens summed by halving before the running sum in fp64; a power of two.
_BLOCK = 16
# Elements of one tile of rows: small enough to stay in the second-level cache and off the page allocator.
_TILE_ELEMENTS = 1 << 16


def draw(rows: DrawRows) -> I64:
    """One token id per row.  Nothing in ``rows`` is changed.

    The kept set of a row: tokens with a probability of at least ``min_p`` times the largest; of these the ``top_k``
    best; of these, renormalised, the fewest whose mass reaches ``top_p``.  Equal logits count in order of their ids.
    """
    vocab_size = rows.vocab_size
    rows = replace(
        rows,
        # Below 1e-30 the best token has all the weight anyway, and fp32 would divide by zero.
        temperature=np.maximum(rows.temperature, np.float32(1e-30)),
        top_k=np.where((rows.top_k <= 0) | (rows.top_k > vocab_size), vocab_size, rows.top_k),
    )
    is_uncut = (rows.top_k == vocab_size) & (rows.min_p <= 0.0)
    is_plain = is_uncut & (rows.top_p >= 1.0)
    tokens = np.empty(len(rows.logits), dtype=np.int64)
    plain = np.flatnonzero(is_plain)
    if len(plain):
        tokens[plain] = _draw_plain(rows.select(plain))
    mass = np.full(len(rows.logits), np.nan)
    nucleus = np.flatnonzero(is_uncut & ~is_plain)
    if len(nucleus):
        own = rows.select(nucleus)
        mass[nucleus] = total_mass(own.logits, own.maxima, own.temperature)
    pending = np.flatnonzero(~is_plain)
    for at_least in STAGES:
        if len(pending):
            drawn, is_settled = _draw_ranked(rows.select(pending), mass[pending], at_least)
            tokens[pending[is_settled]] = drawn[is_settled]
            pending = pending[~is_settled]
    is_wide = rows.top_k[pending] == vocab_size
    wide, limited = pending[is_wide], pending[~is_wide]
    if len(wide):
        tokens[wide] = draw_wide(rows.select(wide), mass[wide])
    tile = max(1, _TILE_ELEMENTS // vocab_size)
    for start in range(0, len(limited), tile):
        part = limited[start : start + tile]
        tokens[part], _ = _draw_ranked(rows.select(part), mass[part], vocab_size)
    return tokens


def _draw_ranked(rows: DrawRows, mass: F64, at_least: int) -> tuple[I64, NDArray[np.bool_]]:
    """Tokens drawn from the ``at_least`` best of each row, and whether those were enough to hold its kept set.

    ``mass`` is the whole row's weight where neither min-p nor top-k cuts it, else NaN.
    """
    ranked = rank_best(rows.logits, at_least)
    with np.errstate(over="ignore"):  # a tiny temperature: minus infinity is what is meant
        weights = np.exp((ranked.logits - rows.maxima[:, None]) / rows.temperature[:, None])
    cumulated = np.cumsum(weights, axis=1, dtype=np.float64)
    num_kept, is_settled = _count_kept(rows, ranked, weights, cumulated, mass)
    at = np.arange(len(weights))
    target = rows.uniforms * cumulated[at, num_kept - 1]
    # The first entry whose running sum exceeds the target.
    entry = np.minimum((cumulated <= target[:, None]).sum(axis=1), num_kept - 1)
    return ranked.ids[at, entry], is_settled


def _count_kept(
    rows: DrawRows, ranked: Ranked, weights: F32, cumulated: F64, mass: F64
) -> tuple[I64, NDArray[np.bool_]]:
    """How many of the ranked tokens each row keeps, and whether the ranked tokens were enough to tell."""
    at = np.arange(len(weights))
    counts = ranked.counts
    has_all = counts == rows.vocab_size
    # Weights are relative to the best token's, which is 1, so min-p compares with them as they are.
    has_min_p = rows.min_p > 0.0
    num_above = (weights >= rows.min_p[:, None]).sum(axis=1)
    num_base = np.minimum(rows.top_k, np.where(has_min_p, num_above, counts))
    is_base_known = has_all | (rows.top_k <= counts) | (has_min_p & (num_above < counts))
    is_uncut = ~np.isnan(mass)
    wanted = rows.top_p * np.where(is_uncut, mass, cumulated[at, num_base - 1])
    # A token is within the nucleus while the mass before it falls short.
    num_within = 1 + (cumulated[:, :-1] < wanted[:, None]).sum(axis=1)
    num_kept = np.where(rows.top_p < 1.0, np.minimum(num_base, num_within), num_base)
    reaches = cumulated[at, counts - 1] >= wanted
    is_settled = np.where(is_uncut, reaches | has_all, is_base_known)
    # A weight that underflowed to zero (a banned token, too) is never drawn.
    num_positive = (weights > 0.0).sum(axis=1)
    return np.minimum(num_kept, num_positive), is_settled


def total_mass(logits: F32, maxima: F32, temperature: F32) -> F64:
    """Sum of exp((logit - max) / temperature) over each row of ``logits`` [R, V]; the others are [R]."""
    result = np.empty(len(logits))
    for part, _, sums in _weight_tiles(logits, maxima, temperature):
        result[part] = np.cumsum(sums, axis=1, dtype=np.float64)[:, -1]
    return result


def _draw_plain(rows: DrawRows) -> I64:
    """The untruncated distribution: first a block by the blocks' sums, then a token inside it; nothing is sorted."""
    tokens = np.empty(len(rows.logits), dtype=np.int64)
    for part, weights, sums in _weight_tiles(rows.logits, rows.maxima, rows.temperature):
        at = np.arange(len(weights))
        cumulated = np.cumsum(sums, axis=1, dtype=np.float64)
        target = rows.uniforms[part] * cumulated[:, -1]
        # A target rounded up to the total belongs to the last block that adds to it.
        last_block = (cumulated < cumulated[:, -1:]).sum(axis=1)
        block = np.minimum((cumulated <= target[:, None]).sum(axis=1), last_block)
        rest = target - np.where(block > 0, cumulated[at, block - 1], 0.0)
        inside = weights[at, :, block]
        running = np.cumsum(inside, axis=1, dtype=np.float64)
        # The block's fp32 sum may exceed its fp64 running sum by a rounding: then its last possible token is meant.
        last = _BLOCK - 1 - (inside[:, ::-1] > 0.0).argmax(axis=1)
        offset = np.minimum((running <= rest[:, None]).sum(axis=1), last)
        tokens[part] = offset * weights.shape[2] + block
    return tokens


def _weight_tiles(logits: F32, maxima: F32, temperature: F32) -> Iterator[tuple[slice, F32, F32]]:
    """Yield (rows, weights, sums of the weights' blocks) tile by tile; the next tile overwrites the arrays.

    Weights are [tile, _BLOCK, n] in token order, padded with zeros; block j is the column [:, j], so that sums run
    along contiguous memory.  Sums [tile, n] are made by halving: an order fixed by the code, not by numpy.
    """
    num_rows, vocab_size = logits.shape
    num_blocks = -(-vocab_size // _BLOCK)
    tile = max(1, min(num_rows, _TILE_ELEMENTS // (num_blocks * _BLOCK)))
    weight_buffer = np.zeros((tile, num_blocks * _BLOCK), dtype=np.float32)
    half_buffer = np.empty((tile, _BLOCK // 2, num_blocks), dtype=np.float32)
    for start in range(0, num_rows, tile):
        part = slice(start, min(start + tile, num_rows))
        size = part.stop - part.start
        view = weight_buffer[:size, :vocab_size]
        np.subtract(logits[part], maxima[part, None], out=view)
        with np.errstate(over="ignore"):
            np.divide(view, temperature[part, None], out=view)
        np.exp(view, out=view)
        weights = weight_buffer[:size].reshape(size, _BLOCK, num_blocks)
        sums = half_buffer[:size]
        np.add(weights[:, : _BLOCK // 2], weights[:, _BLOCK // 2 :], out=sums)
        while sums.shape[1] > 1:
            half = sums.shape[1] // 2
            sums[:, :half] += sums[:, half:]
            sums = sums[:, :half]
        yield part, weights, sums[:, 0]
