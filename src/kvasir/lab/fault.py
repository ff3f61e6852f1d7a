"""Planted damage: kernels that do one thing wrong on purpose, so that it can be shown which measure sees it.

Nothing that serves can reach these: they are not flags, and ``build`` takes them from a measurement only.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from kvasir.formats.registry import FORMATS
from kvasir.formats.store import KVStore
from kvasir.kernels.interface import AttentionPlan, HeadNorms, HeadShape, Kernels, LayerKV, Product
from kvasir.kv.retention import RetentionKind, sliding

Targets = list[tuple[LayerKV, AttentionPlan]]


class Fault(Protocol):
    """One kind of damage.  ``label`` tells it from every other, with its parameters."""

    @property
    def label(self) -> str: ...

    def wrap(self, kernels: Kernels, store: KVStore) -> Kernels:
        """Kernels that do what ``kernels`` do, and the damage."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyKV:
    """Every K and V vector is off by ``relative_error`` of its length, in a direction that position, layer and head
    decide: what a coarse number format does.  Meant for the KL divergence."""

    relative_error: float = 0.01

    @property
    def label(self) -> str:
        return f"noise {self.relative_error:g}"

    def wrap(self, kernels: Kernels, store: KVStore) -> Kernels:
        return cast(Kernels, _NoisyKernels(kernels, store, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nudge:
    """Attention scores off by one part in a million: what another order of summation would do.  Not damage but a
    control: with quantised activations the least change makes other codes, and that alone has a price."""

    share: float = 2.0**-20

    @property
    def label(self) -> str:
        return f"nudge {self.share:g}"

    def wrap(self, kernels: Kernels, store: KVStore) -> Kernels:
        return cast(Kernels, _NudgedKernels(kernels, store, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentHead:
    """One KV head of one layer contributes nothing.  On a retrieval head: meant for the repeat-copy gap."""

    layer: int
    kv_head: int

    @property
    def label(self) -> str:
        return f"silent head {self.layer}.{self.kv_head}"

    def wrap(self, kernels: Kernels, store: KVStore) -> Kernels:
        return cast(Kernels, _SilencingKernels(kernels, store, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTail:
    """When a sequence decodes, the V of older tokens in its last block are gone: a block that was not written through.

    Prefill is untouched, so only what decodes can see it.  Meant for the KL divergence of decoded positions, and for
    the improbable tokens of free generation."""

    @property
    def label(self) -> str:
        return "lost tail"

    def wrap(self, kernels: Kernels, store: KVStore) -> Kernels:
        return cast(Kernels, _TailLosingKernels(kernels, store, self))


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowWindow:
    """Every head sees the last ``window`` tokens only.  Meant for the passkey, and the repeat-copy gap beyond it."""

    window: int = 128

    @property
    def label(self) -> str:
        return f"window {self.window}"

    def wrap(self, kernels: Kernels, store: KVStore) -> Kernels:
        return cast(Kernels, _NarrowKernels(kernels, store, self))


class _Wrapped:
    """Passes everything on to the sound kernels.  ``layer_of``: the layer of each ``LayerKV`` of the store, by id."""

    def __init__(self, kernels: Kernels, store: KVStore, fault: Fault) -> None:
        self._sound = kernels
        self.name = f"{kernels.name}, {fault.label}"
        self.layer_of = {id(kv): layer for layer, entries in enumerate(store.layers) for _, kv in entries}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sound, name)


class _NoisyKernels(_Wrapped):
    _NUM_PATTERNS = 4099
    """Prime, so that positions, layers and heads meet every pattern."""

    def __init__(self, kernels: Kernels, store: KVStore, fault: NoisyKV) -> None:
        super().__init__(kernels, store, fault)
        head_dim = store.layout.groups[0].head_dim
        patterns = torch.randn(self._NUM_PATTERNS, head_dim, generator=torch.Generator().manual_seed(1))
        self._patterns = patterns * (fault.relative_error / patterns.norm(dim=1, keepdim=True))

    def qkv_write(
        self,
        product: Product,
        shape: HeadShape,
        norms: HeadNorms | None,
        rope: tuple[Tensor, Tensor],
        targets: Targets,
    ) -> Tensor:
        q = self._sound.qkv_write(product, shape, norms, rope, targets)
        for kv, plan in targets:
            positions = _positions(plan)
            k_format, v_format = FORMATS[kv.k_dtype], FORMATS[kv.v_dtype]
            blocks, slots = _slots_within_blocks(plan)
            k = k_format.decode_k(kv, blocks)[:, slots].transpose(0, 1)
            v = v_format.decode_v(kv, blocks)[:, slots].transpose(0, 1)
            k_format.encode_k(kv, plan.slots, self._off(k, positions, 2 * self.layer_of[id(kv)]))
            v_format.encode_v(kv, plan.slots, self._off(v, positions, 2 * self.layer_of[id(kv)] + 1))
        return q

    def _off(self, rows: Tensor, positions: Tensor, number: int) -> Tensor:
        """``rows`` [T, h, D], each with its pattern scaled to its own length."""
        heads = torch.arange(rows.shape[1])
        chosen = (positions[:, None] * 31 + heads * 1009 + number * 211) % self._NUM_PATTERNS
        return rows + self._patterns[chosen] * rows.norm(dim=2, keepdim=True)


class _NudgedKernels(_Wrapped):
    def __init__(self, kernels: Kernels, store: KVStore, fault: Nudge) -> None:
        super().__init__(kernels, store, fault)
        self._factor = 1.0 + fault.share

    def attend(self, q: Tensor, kv: LayerKV, plan: AttentionPlan, scale: float, out: Tensor) -> None:
        self._sound.attend(q, kv, plan, scale * self._factor, out)


class _SilencingKernels(_Wrapped):
    def __init__(self, kernels: Kernels, store: KVStore, fault: SilentHead) -> None:
        super().__init__(kernels, store, fault)
        layout = store.layout
        if not (0 <= fault.layer < layout.num_layers and 0 <= fault.kv_head < layout.num_kv_heads):
            raise ValueError(f"there is no KV head {fault.kv_head} of layer {fault.layer}")
        self._fault = fault

    def attend(self, q: Tensor, kv: LayerKV, plan: AttentionPlan, scale: float, out: Tensor) -> None:
        self._sound.attend(q, kv, plan, scale, out)
        if self.layer_of[id(kv)] == self._fault.layer and self._fault.kv_head in kv.heads.tolist():
            num_queries = q.shape[1] // kv.num_kv_heads
            first = self._fault.kv_head * num_queries
            out[:, first : first + num_queries] = 0.0


class _TailLosingKernels(_Wrapped):
    def qkv_write(
        self,
        product: Product,
        shape: HeadShape,
        norms: HeadNorms | None,
        rope: tuple[Tensor, Tensor],
        targets: Targets,
    ) -> Tensor:
        q = self._sound.qkv_write(product, shape, norms, rope, targets)
        for kv, plan in targets:
            is_decode = plan.query_start.diff() == 1
            newest = plan.slots[plan.query_start[:-1][is_decode].long()]
            older = [
                torch.arange(slot - slot % plan.block_size, slot) for slot in newest.tolist() if slot % plan.block_size
            ]
            if older:
                slots = torch.cat(older)
                head_dim = shape.head_dim
                FORMATS[kv.v_dtype].encode_v(kv, slots, torch.zeros(len(slots), len(kv.heads), head_dim))
        return q


class _NarrowKernels(_Wrapped):
    def __init__(self, kernels: Kernels, store: KVStore, fault: NarrowWindow) -> None:
        super().__init__(kernels, store, fault)
        self._window = fault.window
        # A step's plan is used by every layer: the narrowed one is made once, and kept with the one it came from.
        self._narrowed: dict[int, tuple[AttentionPlan, AttentionPlan]] = {}

    def attend(self, q: Tensor, kv: LayerKV, plan: AttentionPlan, scale: float, out: Tensor) -> None:
        kept = self._narrowed.get(id(plan))
        if kept is None or kept[0] is not plan:
            if self.layer_of[id(kv)] == 0:
                self._narrowed.clear()
            kept = self._narrowed[id(plan)] = (plan, self._narrow(plan))
        self._sound.attend(q, kv, kept[1], scale, out)

    def _narrow(self, plan: AttentionPlan) -> AttentionPlan:
        is_full = plan.retention.kind is RetentionKind.FULL
        window = self._window if is_full else min(self._window, plan.retention.window)
        return replace(plan, retention=sliding(window))


def _positions(plan: AttentionPlan) -> Tensor:
    """int64 [T]: each token's position in its sequence."""
    lengths = plan.query_start.diff().long()
    offset = plan.first_position.long() - plan.query_start[:-1].long()
    return torch.arange(int(plan.query_start[-1])) + offset.repeat_interleave(lengths)


def _slots_within_blocks(plan: AttentionPlan) -> tuple[Tensor, Tensor]:
    """The blocks written to, and where in their concatenation each token of the step lies."""
    blocks, which = torch.unique(plan.slots // plan.block_size, return_inverse=True)
    return blocks, which * plan.block_size + plan.slots % plan.block_size
