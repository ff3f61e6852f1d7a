"""Watches queries, keys and values of a model while it reads a text: through the kernel seam, so for every family."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from kvasir.core.progress import Progress, no_progress
from kvasir.formats.registry import FORMATS
from kvasir.formats.store import KVStore
from kvasir.kernels.interface import AttentionPlan, HeadNorms, HeadShape, Kernels, LayerKV, Product, Rows, RowStyle
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVLayout
from kvasir.kv.retention import Retention
from kvasir.models.config import ModelConfig
from kvasir.models.decoder import Decoder
from kvasir.models.layers import ModelWeights
from kvasir.models.linear import Scratch

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerView:
    """One layer reading T tokens of one sequence: q [T, Hq, D] and k [T, Hkv, D] after RoPE, v [T, Hkv, D], all fp32.

    ``energy`` [T]: squared length of the residual stream that the layer's output will be added to.
    """

    layer: int
    q: Tensor
    k: Tensor
    v: Tensor
    energy: Tensor


See = Callable[[LayerView], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedModel:
    """A model whose weights are in fp32, so that nothing but the model itself is seen."""

    config: ModelConfig
    weights: ModelWeights
    kernels: Kernels

    def read(self, token_ids: Sequence[int], see: See, progress: Progress = no_progress) -> None:
        """Compute ``token_ids`` as one sequence; ``see`` gets every layer in turn and must keep no view of it.

        The cache is fp32, so k and v are what the model computed.  Memory: one sequence's cache, freed at the end.
        """
        num_tokens = len(token_ids)
        geometry = self.config.geometry
        layout = KVLayout.from_geometry(geometry, block_size=BLOCK_SIZE, k_dtype=KVDtype.FP32, v_dtype=KVDtype.FP32)
        num_blocks = -(-num_tokens // BLOCK_SIZE)
        store = KVStore(layout, (num_blocks,) * len(layout.groups))
        watching = cast(Kernels, _Watching(self.kernels, store, num_tokens, see, progress))
        decoder = Decoder(self.config, self.weights, watching, num_tokens)
        plans = tuple(_whole_sequence(num_tokens, num_blocks, spec.retention) for spec in layout.groups)
        decoder.forward(
            torch.tensor(token_ids), torch.arange(num_tokens), store, plans, torch.empty(0, dtype=torch.int64)
        )

    def output_weight(self, layer: int) -> Tensor:
        """The output projection of ``layer`` as [Hq, D, hidden]: what a head's output adds to the residual stream."""
        linear = self.weights.layers[layer].output
        product = linear(Rows(torch.eye(linear.in_features)), Scratch(), self.kernels)
        return product.data.clone().unflatten(0, (self.config.num_heads, self.config.head_dim))


class _Watching:
    """Passes everything on to the kernels and shows each layer after its K and V were written."""

    def __init__(self, kernels: Kernels, store: KVStore, num_tokens: int, see: See, progress: Progress) -> None:
        self._kernels = kernels
        self._see = see
        self._progress = progress
        self._num_tokens = num_tokens
        self._num_layers = store.layout.num_layers
        self._num_kv_heads = store.layout.num_kv_heads
        self._layer = 0
        self._energy = torch.empty(0)
        self.name = kernels.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def norm_rows(self, x: Tensor, weight: Tensor, eps: float, style: RowStyle) -> Rows:
        self._energy = x.square().sum(dim=-1)
        return self._kernels.norm_rows(x, weight, eps, style)

    def add_norm_rows(self, residual: Tensor, product: Product, weight: Tensor, eps: float, style: RowStyle) -> Rows:
        rows = self._kernels.add_norm_rows(residual, product, weight, eps, style)
        self._energy = residual.square().sum(dim=-1)
        return rows

    def qkv_write(
        self,
        product: Product,
        shape: HeadShape,
        norms: HeadNorms | None,
        rope: tuple[Tensor, Tensor],
        targets: list[tuple[LayerKV, AttentionPlan]],
    ) -> Tensor:
        q = self._kernels.qkv_write(product, shape, norms, rope, targets)
        k = torch.empty(self._num_tokens, self._num_kv_heads, shape.head_dim)
        v = torch.empty_like(k)
        for kv, _ in targets:
            heads = kv.heads.long()
            blocks = torch.arange(len(kv.k[0]))  # they lie in the order of the tokens
            k[:, heads] = FORMATS[kv.k_dtype].decode_k(kv, blocks)[:, : self._num_tokens].transpose(0, 1)
            v[:, heads] = FORMATS[kv.v_dtype].decode_v(kv, blocks)[:, : self._num_tokens].transpose(0, 1)
        self._see(LayerView(layer=self._layer, q=q, k=k, v=v, energy=self._energy))
        self._layer += 1
        self._progress("read", self._layer / self._num_layers)
        return q


def _whole_sequence(num_tokens: int, num_blocks: int, retention: Retention) -> AttentionPlan:
    return AttentionPlan(
        query_start=torch.tensor([0, num_tokens], dtype=torch.int32),
        first_position=torch.zeros(1, dtype=torch.int32),
        block_table=torch.arange(num_blocks, dtype=torch.int32)[None],
        slots=torch.arange(num_tokens),
        block_size=BLOCK_SIZE,
        retention=retention,
    )
