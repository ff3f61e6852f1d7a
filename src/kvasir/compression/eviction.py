"""Which of a prompt's tokens each head keeps, when every head keeps equally many.

KeyDiff (Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
Resource-Constrained Environments", 2025): a head's keys mostly point one way; those that do not are the ones attention
singles out.  Score = minus the cosine between a key (as stored, after RoPE) and the mean of the head's normalised keys.
It asks no query, so the same tokens stay whatever is asked.  RANDOM draws a lot for every (head, position); it is the
control that every score has to beat.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from kvasir.kv.eviction import EvictionRule

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def kept_positions(scores: F64, rule: EvictionRule, num_pinned: int) -> I64:
    """Positions [h, num_kept] that heads with ``scores`` [h, num_prompt] keep, ascending: those ``rule`` protects, then
    the highest scores; of equal scores the earlier token stays."""
    num_prompt = scores.shape[1]
    first = rule.num_first(num_prompt, num_pinned)
    ranked = scores.copy()
    ranked[:, :first] = np.inf
    if rule.recent:
        ranked[:, max(first, num_prompt - rule.recent) :] = np.inf
    order = np.argsort(-ranked, axis=1, kind="stable")
    return np.sort(order[:, : rule.num_kept(num_prompt, num_pinned)], axis=1)


def keydiff_scores(keys: NDArray[np.float32]) -> F64:
    """[h, n] of ``keys`` [h, n, D]; higher: less like the others.

    In fp64, by numpy alone: its sums over tokens run in the tokens' order on one thread, so only the keys decide.
    A key with a value that is no number scores highest, so that it stays visible."""
    rows = keys.astype(np.float64)
    is_number = np.asarray(np.isfinite(rows).all(axis=2))
    rows = np.where(is_number[..., None], rows, 0.0)
    lengths = np.sqrt(np.square(rows).sum(axis=2, keepdims=True))
    units = rows / np.where(lengths > 0.0, lengths, 1.0)
    anchor = units.sum(axis=1, keepdims=True)
    scores = -(units * anchor).sum(axis=2)
    return np.where(is_number, scores, np.inf)


def random_scores(rule: EvictionRule, layer: int, heads: list[int], num_prompt: int) -> F64:
    """[h, n]: lots of the KV heads ``heads`` of ``layer``, by position; the same in every request."""
    lots = []
    for head in heads:
        name = f"eviction by lot, seed {rule.seed}, layer {layer}, head {head}"
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
        # A counter-based generator: the first n draws are the same however many follow.
        lots.append(np.random.Generator(np.random.Philox(key=seed)).random(num_prompt))
    return np.stack(lots)
