"""What int8 attention computes, written down in fp64: the same roundings of q and of P, and nothing else rounded."""

import torch
from torch import Tensor

from kvasir.formats.registry import FORMATS
from kvasir.kernels.interface import AttentionPlan, LayerKV
from kvasir.kernels.quantiser import quantise_rows

SEGMENT, SUB_BLOCK, LEVELS = 512, 16, 127


def attend(q: Tensor, kv: LayerKV, plan: AttentionPlan, scale: float) -> Tensor:
    """As ``Kernels.attend`` for a store of all KV heads with int8 K and V; q is coded per token and head, P per
    sixteen tokens with V's scale folded in, in steps of what the largest weight would have under the largest scale."""
    codes, q_scale = quantise_rows(q)
    coded_q = codes.double() * q_scale.double()[..., None]
    out = torch.empty_like(q)
    group = q.shape[1] // kv.num_kv_heads
    for row, first in enumerate(plan.first_position.tolist()):
        start, stop = plan.query_start[row : row + 2].tolist()
        blocks = plan.block_table[row].long().clamp(min=0)
        k = FORMATS[kv.k_dtype].decode_k(kv, blocks).double().repeat_interleave(group, dim=0)
        v = FORMATS[kv.v_dtype].decode_v(kv, blocks).double().repeat_interleave(group, dim=0)
        v_scale = v.abs().amax(dim=-1) / LEVELS
        for token in range(start, stop):
            position = first + token - start
            oldest = plan.retention.first_visible(position)
            out[token] = _one(coded_q[token], k, v, v_scale, scale, range(oldest, position + 1)).float()
    return out


def _one(q: Tensor, k: Tensor, v: Tensor, v_scale: Tensor, scale: float, seen: range) -> Tensor:
    """q [Hq, D], k and v [Hq, T, D], v_scale [Hq, T] -> [Hq, D]."""
    scores = torch.einsum("hd,htd->ht", q, k) * scale
    is_seen = torch.zeros(scores.shape[1], dtype=torch.bool)
    is_seen[seen.start : seen.stop] = True
    scores = scores.masked_fill(~is_seen, float("-inf"))
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    padding = -weights.shape[1] % SUB_BLOCK

    def by_sub_block(values: Tensor) -> Tensor:
        return torch.nn.functional.pad(values, (0, padding)).unflatten(1, (-1, SUB_BLOCK))

    seen_scale = torch.where(is_seen, v_scale, 0.0)
    largest = by_sub_block(weights).amax(dim=-1, keepdim=True) * by_sub_block(seen_scale).amax(dim=-1, keepdim=True)
    step, folded = largest / LEVELS, by_sub_block(weights * seen_scale)
    coded = torch.where(step > 0, torch.round(folded / step) * step, 0.0).flatten(1)[:, : weights.shape[1]]
    codes = torch.where(v_scale[..., None] > 0, v / v_scale[..., None], 0.0)
    return torch.einsum("ht,htd->hd", coded, codes) / weights.sum(dim=-1, keepdim=True)
