"""Log-probabilities of chosen tokens and their best alternatives: each row its own list."""

import numpy as np

from kvasir.core.step import TokenLogprobs
from kvasir.engine.draw import total_mass
from kvasir.engine.ranking import F32, I64, rank_best


def token_logprobs(logits: F32, maxima: F32, tokens: I64, num_alternatives: I64) -> list[TokenLogprobs]:
    """One entry per row of ``logits`` [R, V] for ``tokens`` [R]; all sums and logarithms in fp64.

    Row r lists its best ``num_alternatives[r]`` tokens, fewer where the rest cannot be drawn (logit -inf).  ``rank``
    counts from 1; equal logits rank by id.  ``maxima`` are the rows' largest logits, all finite.
    """
    log_mass = np.log(total_mass(logits, maxima, np.ones(len(logits), dtype=np.float32)))
    shift = maxima.astype(np.float64) + log_mass
    chosen = logits[np.arange(len(logits)), tokens]
    logprobs = chosen.astype(np.float64) - shift
    most = int(num_alternatives.max(initial=0))
    ranked = rank_best(logits, most) if most else None
    result = []
    for row, (token, num) in enumerate(zip(tokens.tolist(), num_alternatives.tolist(), strict=True)):
        top: tuple[tuple[int, float], ...] = ()
        if ranked is not None and num:
            best = ranked.logits[row, :num]
            alternatives = best.astype(np.float64) - shift[row]
            ids = ranked.ids[row, :num].tolist()
            top = tuple(pair for pair in zip(ids, alternatives.tolist(), strict=True) if pair[1] > -np.inf)
        own = logits[row]
        rank = 1 + np.count_nonzero(own > chosen[row]) + np.count_nonzero(own[:token] == chosen[row])
        result.append(TokenLogprobs(logprob=float(logprobs[row]), rank=int(rank), top=top))
    return result
