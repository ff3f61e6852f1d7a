"""Sparse reading of one step: some tokens attend to chosen blocks, the others to everything; the same for all kernels.

A (token, KV head) that reads sparsely becomes a sequence of its own: its chosen blocks, oldest first, are its block
table over the store seen as one head of many blocks.  So attention itself is what it always is.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvasir.kernels.interface import AttentionPlan, Kernels, LayerKV
from kvasir.kv.retention import FULL


@dataclass(slots=True)
class SparseStep:
    """``tokens`` int64 [S] of the step's T read ``limit`` blocks each; ``dense`` plans the other ``dense_tokens``, None
    where there are none.

    block_table   int32 [S, W], num_blocks int32 [S]: what each sparse token sees
    last_offset   int32 [S]: the token's place in its last block
    """

    tokens: Tensor
    block_table: Tensor
    num_blocks: Tensor
    last_offset: Tensor
    limit: int
    block_size: int
    dense_tokens: Tensor
    dense: AttentionPlan | None
    chosen: dict[int, AttentionPlan] = field(default_factory=dict)

    def plan_for(self, num_heads: int) -> AttentionPlan:
        """The plan of S * ``num_heads`` sequences of one token; its block table is written anew in every layer."""
        plan = self.chosen.get(num_heads)
        if plan is None:
            num = len(self.tokens) * num_heads
            last = (self.limit - 1) * self.block_size + self.last_offset
            plan = self.chosen[num_heads] = AttentionPlan(
                query_start=torch.arange(num + 1, dtype=torch.int32),
                first_position=last.repeat_interleave(num_heads),
                block_table=torch.empty(num, self.limit, dtype=torch.int32),
                slots=torch.zeros(num, dtype=torch.int64),
                block_size=self.block_size,
                retention=FULL,
            )
        return plan


def attend(kernels: Kernels, q: Tensor, kv: LayerKV, plan: AttentionPlan, scale: float, out: Tensor) -> None:
    """``Kernels.attend``, sparsely where ``plan.sparse`` says so."""
    step, bounds = plan.sparse, kv.bounds
    if step is None or bounds is None:
        kernels.attend(q, kv, plan, scale, out)
        return
    heads = kv.heads.long()
    shape = (kv.num_kv_heads, q.shape[1] // kv.num_kv_heads)
    if step.dense is not None:
        some = q[step.dense_tokens]
        result = torch.empty_like(some)
        kernels.attend(some, kv, step.dense, scale, result)
        out.unflatten(1, shape)[step.dense_tokens[:, None], heads] = result.unflatten(1, shape)[:, heads]
    some = q.unflatten(1, shape)[step.tokens[:, None], heads]
    chosen = step.plan_for(len(heads))
    kernels.select_blocks(some, bounds.tensor, step.block_table, step.num_blocks, chosen.block_table)
    result = torch.empty_like(some)
    if len(bounds.flat) == 1:
        kernels.attend(some.flatten(0, 1), bounds.flat[0], chosen, scale, result.flatten(0, 1))
    else:
        tables = chosen.block_table.view(-1, len(heads), step.limit)
        for i, flat in enumerate(bounds.flat):
            alone = step.plan_for(1)
            alone.block_table.copy_(tables[:, i])
            part = torch.empty_like(result[:, i])
            kernels.attend(some[:, i].contiguous(), flat, alone, scale, part)
            result[:, i] = part
    out.unflatten(1, shape)[step.tokens[:, None], heads] = result
