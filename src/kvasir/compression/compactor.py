"""Carries out compactions: reads the keys of a prompt, lets every head choose, packs what stays into other blocks."""

import numpy as np
import torch
from torch import Tensor

from kvasir.compression.eviction import kept_positions, keydiff_scores, random_scores
from kvasir.core.errors import InvariantViolation
from kvasir.core.step import Compaction
from kvasir.formats.key_bounds import bound_blocks
from kvasir.formats.registry import FORMATS
from kvasir.formats.slot_bytes import SlotBytes
from kvasir.formats.store import KVStore
from kvasir.kernels.interface import LayerKV
from kvasir.kv.eviction import EvictionKind, EvictionRule


class Compactor:
    """Moves encoded tokens as they are: what a kept token is read as does not change by a bit."""

    def __init__(self, store: KVStore, rule: EvictionRule | None) -> None:
        self._store = store
        self._rule = rule
        self._slot_bytes: dict[int, SlotBytes] = {}

    def run(self, compaction: Compaction) -> None:
        """Do ``compaction`` (see there) in every layer of its group, in place."""
        if self._rule is None:
            raise InvariantViolation("a prompt is to be compacted, but no rule says what of it stays")
        sources, targets = torch.tensor(compaction.sources), torch.tensor(compaction.targets)
        size = self._store.layout.block_size
        places = torch.arange(compaction.num_kept)
        into = targets[places // size] * size + places % size
        for layer, entries in enumerate(self._store.layers):
            for group_id, kv in entries:
                if group_id == compaction.group_id:
                    kept = self._choose(self._rule, compaction, layer, kv, sources)
                    self._slots(group_id, kv).move((*kv.k, *kv.v), sources[kept // size] * size + kept % size, into)
                    if kv.bounds is not None and compaction.num_kept >= size:
                        bound_blocks(kv, targets[: compaction.num_kept // size])

    def _choose(self, rule: EvictionRule, what: Compaction, layer: int, kv: LayerKV, sources: Tensor) -> Tensor:
        """Positions int64 [h, num_kept] that the layer's heads keep."""
        if rule.kind is EvictionKind.KEYDIFF:
            keys = FORMATS[kv.k_dtype].decode_k(kv, sources)[:, : what.num_tokens]
            scores = keydiff_scores(np.ascontiguousarray(keys.numpy()))
        else:
            scores = random_scores(rule, layer, kv.heads.tolist(), what.num_tokens)
        return torch.from_numpy(kept_positions(scores, rule, what.num_pinned))

    def _slots(self, group_id: int, kv: LayerKV) -> SlotBytes:
        found = self._slot_bytes.get(group_id)
        if found is None:
            spec = self._store.layout.groups[group_id]
            found = self._slot_bytes[group_id] = SlotBytes(kv, spec.block_size, spec.head_dim)
        return found
