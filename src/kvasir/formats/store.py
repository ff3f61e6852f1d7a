"""``KVStore``: the tensors of the paged cache, layer-major, exactly as many bytes as ``KVSpec`` says."""

import torch
from torch import Tensor

from kvasir.formats.arena import Arena
from kvasir.formats.constants import KVConstants, check_constants
from kvasir.formats.key_bounds import flat_heads
from kvasir.kernels.interface import Kernels, KeyBounds, LayerKV
from kvasir.kv.format_spec import ITEM_BYTES, K_TILES
from kvasir.kv.layout import KVLayout
from kvasir.kv.spec import KVSpec

_TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}


class KVStore:
    """The cache memory of all groups.

    ``layers[layer]`` lists (group_id, LayerKV) for every group that has heads in that layer, in group order.
    ``constants`` are those of the whole model; raises ``ConfigError`` when they lack what the layout's formats need.
    ``num_bytes`` is the sum of ``KVSpec.pool_bytes``: asked for once, at start, zeroed, never resized.
    """

    def __init__(self, layout: KVLayout, num_blocks: tuple[int, ...], constants: KVConstants | None = None) -> None:
        if len(num_blocks) != len(layout.groups):
            raise ValueError(f"{len(num_blocks)} block counts given for {len(layout.groups)} groups")
        if min(num_blocks) < 1:
            raise ValueError(f"every group needs at least one block, got {num_blocks}")
        check_constants(layout, constants)
        self.layout = layout
        self.num_blocks = num_blocks
        self.num_bytes = sum(spec.pool_bytes(count) for spec, count in zip(layout.groups, num_blocks, strict=True))
        self.layers: list[list[tuple[int, LayerKV]]] = [[] for _ in range(layout.num_layers)]
        arena = Arena(self.num_bytes)
        for group_id, (spec, count) in enumerate(zip(layout.groups, num_blocks, strict=True)):
            for layer, heads in enumerate(spec.heads_by_layer):
                if heads:
                    kv = _make_layer(arena, spec, layer, count, layout.num_kv_heads)
                    if constants is not None:
                        kv.constants = constants.of_layer(layer, heads)
                    if kv.bounds is not None:
                        kv.bounds.flat = flat_heads(kv)
                    self.layers[layer].append((group_id, kv))

    def group_tensors(self, group_id: int) -> tuple[Tensor, ...]:
        """Every tensor of the group over all layers, K before V within a layer; each is [num_blocks, ...]."""
        return tuple(
            tensor
            for entries in self.layers
            for entry_group, kv in entries
            if entry_group == group_id
            for tensor in (*kv.k, *kv.v, *(() if kv.bounds is None else (kv.bounds.tensor,)))
        )

    def copy(self, group_id: int, sources: Tensor, targets: Tensor, kernels: Kernels) -> None:
        """Copy blocks ``sources[i]`` -> ``targets[i]`` (int64 [C]) of the group in every layer."""
        kernels.copy_blocks(self.group_tensors(group_id), sources, targets)


def _make_layer(arena: Arena, spec: KVSpec, layer: int, num_blocks: int, num_kv_heads: int) -> LayerKV:
    tensors = tuple(
        arena.cut(spec.tensor_shape(tensor, layer, num_blocks), _TORCH_DTYPES[tensor.dtype])
        for tensor in spec.tile_tensors
    )
    num_k_tensors = len(K_TILES[spec.k_dtype](spec.head_dim, spec.block_size))
    num_tile_tensors = len(tensors) - spec.has_bounds
    return LayerKV(
        heads=torch.tensor(spec.heads_by_layer[layer], dtype=torch.int32),
        num_kv_heads=num_kv_heads,
        head_dim=spec.head_dim,
        block_size=spec.block_size,
        k=tensors[:num_k_tensors],
        v=tensors[num_k_tensors:num_tile_tensors],
        k_dtype=spec.k_dtype,
        v_dtype=spec.v_dtype,
        bounds=KeyBounds(tensors[-1]) if spec.has_bounds else None,
    )
