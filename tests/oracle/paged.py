"""Runs a ``Decoder`` over sequences in a paged store whose blocks lie in a shuffled order."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvasir.formats.store import KVStore
from kvasir.kernels.interface import AttentionPlan
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVLayout
from kvasir.models.decoder import Decoder


@dataclass
class PagedSequences:
    """``token_ids`` of each sequence; ``computed`` counts what the store holds.  Every group gets its own tables."""

    decoder: Decoder
    token_ids: list[list[int]]
    block_size: int = 16
    seed: int = 0
    computed: list[int] = field(init=False)

    def __post_init__(self) -> None:
        geometry = self.decoder.config.geometry
        self.layout = KVLayout.from_geometry(
            geometry, block_size=self.block_size, k_dtype=KVDtype.FP32, v_dtype=KVDtype.FP32
        )
        per_sequence = -(-self.decoder.max_model_len // self.block_size)
        num_blocks = per_sequence * len(self.token_ids) + 3
        self.store = KVStore(self.layout, (num_blocks,) * len(self.layout.groups))
        for group_id in range(len(self.layout.groups)):
            for tensor in self.store.group_tensors(group_id):
                tensor.fill_(float("nan"))  # whatever is read before it is written shows
        generator = torch.Generator().manual_seed(self.seed)
        self.tables = [
            torch.randperm(num_blocks, generator=generator)[: num_blocks - 3].view(len(self.token_ids), per_sequence)
            for _ in self.layout.groups
        ]
        self.computed = [0] * len(self.token_ids)

    def step(self, num_new: dict[int, int]) -> dict[int, Tensor]:
        """Compute the next ``num_new[i]`` tokens of sequences i, in the dict's order; logits of each, by sequence."""
        spans = {i: (self.computed[i], self.computed[i] + count) for i, count in num_new.items()}
        positions = torch.cat([torch.arange(*span) for span in spans.values()])
        tokens = torch.tensor([t for i, span in spans.items() for t in self.token_ids[i][slice(*span)]])
        plans = tuple(self._plan(group_id, spans) for group_id in range(len(self.layout.groups)))
        logits = self.decoder.forward(tokens, positions, self.store, plans, torch.arange(len(tokens)))
        for i, count in num_new.items():
            self.computed[i] += count
        return dict(zip(num_new, logits.split(list(num_new.values())), strict=True))

    def _plan(self, group_id: int, spans: dict[int, tuple[int, int]]) -> AttentionPlan:
        lengths = torch.tensor([0] + [end - start for start, end in spans.values()])
        positions = [torch.arange(*span) for span in spans.values()]
        tables = self.tables[group_id][list(spans)]
        slots = [
            table[span // self.block_size] * self.block_size + span % self.block_size
            for table, span in zip(tables, positions, strict=True)
        ]
        return AttentionPlan(
            query_start=lengths.cumsum(0).int(),
            first_position=torch.tensor([start for start, _ in spans.values()]).int(),
            block_table=tables.int(),
            slots=torch.cat(slots),
            block_size=self.block_size,
            retention=self.layout.groups[group_id].retention,
        )


def all_logits(decoder: Decoder, token_ids: list[list[int]], chunk: int, **kwargs: int) -> list[Tensor]:
    """Logits [len, vocab] of every token of every sequence; all sequences advance by ``chunk`` a step."""
    run = PagedSequences(decoder, token_ids, **kwargs)
    parts: list[list[Tensor]] = [[] for _ in token_ids]
    while True:
        left = {i: len(ids) - run.computed[i] for i, ids in enumerate(token_ids)}
        todo = {i: min(chunk, count) for i, count in left.items() if count}
        if not todo:
            return [torch.cat(part) for part in parts]
        for i, logits in run.step(todo).items():
            parts[i].append(logits)
