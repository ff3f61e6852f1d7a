"""Which heads look back for what was there before: induction and echo scores on repeats (arXiv 2407.15891)."""

import random
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir.compression.observer import LayerView, ObservedModel
from kvasir.core.errors import ConfigError
from kvasir.core.progress import Progress, no_progress

NUM_REPEATS = 4
LEAST_PERIOD = 8
_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedTokens:
    """``prefix`` tokens that begin every text of the model (0 or 1), then one random block ``NUM_REPEATS`` times.

    token_ids:  [ bos | block | block | block | block ]        each block has ``period`` tokens
    """

    token_ids: tuple[int, ...]
    period: int
    num_prefix: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionScores:
    """Per (layer, KV head), each fp32 [L, Hkv] in [0, 1]: the highest score of the head's query heads."""

    induction: Tensor
    echo: Tensor


def repeated_tokens(
    vocab_size: int, special_ids: Collection[int], bos_id: int | None, period: int, seed: int = 0
) -> RepeatedTokens:
    """Ids from the vocabulary's middle half, none of them special, and none twice where there are enough."""
    if period < LEAST_PERIOD:
        raise ConfigError(f"Repetition scores need a block of at least {LEAST_PERIOD} tokens, and {period} fit.")
    special = frozenset(special_ids)
    ids = [i for i in range(vocab_size // 4, 3 * vocab_size // 4) if i not in special]
    rng = random.Random(seed)
    block = rng.sample(ids, period) if len(ids) >= period else rng.choices(ids, k=period)
    prefix = () if bos_id is None else (bos_id,)
    return RepeatedTokens(token_ids=(*prefix, *block * NUM_REPEATS), period=period, num_prefix=len(prefix))


def longest_period(context: int, wanted: int) -> int:
    """``wanted`` tokens, or as many as let ``NUM_REPEATS`` blocks and a first token fit into ``context``."""
    return min(wanted, (context - 1) // NUM_REPEATS)


def score_heads(model: ObservedModel, tokens: RepeatedTokens, progress: Progress = no_progress) -> RepetitionScores:
    """One pass over ``tokens``.

    For row i from the second block on, over the earlier copies j = i - period, i - 2 period, ...: echo is the weight on
    j, induction the weight on j + 1, each summed over copies and averaged over rows.  The prefix counts in no softmax.
    """
    shape = (model.config.num_layers, model.config.num_kv_heads)
    induction, echo = torch.zeros(shape), torch.zeros(shape)

    def see(view: LayerView) -> None:
        found = layer_scores(view.q[tokens.num_prefix :], view.k[tokens.num_prefix :], tokens.period)
        induction[view.layer], echo[view.layer] = found

    model.read(tokens.token_ids, see, progress)
    return RepetitionScores(induction=induction, echo=echo)


def layer_scores(q: Tensor, k: Tensor, period: int) -> tuple[Tensor, Tensor]:
    """(induction, echo), each [Hkv], of ``q`` [T, Hq, D] and ``k`` [T, Hkv, D]; never [T, T] at once."""
    num_tokens, num_kv_heads, head_dim = k.shape
    grouped = q.unflatten(1, (num_kv_heads, -1)) * head_dim**-0.5
    keys = k.permute(1, 2, 0)
    induction = torch.zeros(num_kv_heads, grouped.shape[2], dtype=torch.float64)
    echo = torch.zeros_like(induction)
    for start in range(period, num_tokens, _ROWS_AT_ONCE):
        rows = torch.arange(start, min(start + _ROWS_AT_ONCE, num_tokens))
        # [Hkv, G, n, T'] with T' up to the block's last row
        scores = (grouped[rows].permute(1, 2, 0, 3).flatten(1, 2) @ keys[:, :, : int(rows[-1]) + 1]).unflatten(
            1, (-1, len(rows))
        )
        hidden = torch.arange(int(rows[-1]) + 1) > rows[:, None]
        weights = scores.masked_fill_(hidden, float("-inf")).softmax(dim=-1)
        for repeat in range(1, num_tokens // period + 1):
            earlier = rows - repeat * period
            seen = earlier >= 0
            if not seen.any():
                break
            which = torch.arange(len(rows))[seen]
            echo += weights[:, :, which, earlier[seen]].sum(dim=-1).double()
            induction += weights[:, :, which, earlier[seen] + 1].sum(dim=-1).double()
    num_rows = num_tokens - period
    return (induction / num_rows).amax(dim=1).float(), (echo / num_rows).amax(dim=1).float()
