"""The decoder of all families: one loop over layers, written against the kernel contract."""

import torch
from torch import Tensor

from kvasir.formats.key_bounds import bound_blocks
from kvasir.formats.store import KVStore
from kvasir.kernels import sparse
from kvasir.kernels.interface import AttentionPlan, HeadShape, Kernels, LayerKV, Product, Rows
from kvasir.models.config import ModelConfig
from kvasir.models.layers import LayerWeights, ModelWeights
from kvasir.models.linear import Scratch
from kvasir.models.rope import RotaryTable

Targets = list[tuple[LayerKV, AttentionPlan]]


class Decoder:
    """Computes logits of one step.  Holds weights, tables and scratch memory; everything about the step is passed in.

    Not for use by several threads at once (the scratch memory is shared by the layers of a step).
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights, kernels: Kernels, max_model_len: int) -> None:
        self.config = config
        self.weights = weights
        self.kernels = kernels
        self.max_model_len = max_model_len
        self._rope = RotaryTable(config.rope, config.head_dim, max_model_len)
        self._shape = HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)
        self._scratch = Scratch()

    @property
    def num_bytes(self) -> int:
        """Bytes the decoder holds besides the weights: tables and scratch."""
        return self._rope.num_bytes + self._scratch.num_bytes

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        store: KVStore,
        plans: tuple[AttentionPlan, ...],
        logits_rows: Tensor,
    ) -> Tensor:
        """Logits, fp32 [S, vocab_size], of the tokens ``logits_rows`` (int64 [S], indices into the step's tokens).

        ``token_ids`` and ``positions`` are int64 [T]; ``plans`` is indexed by group_id.  Writes K and V of all T
        tokens into ``store`` and changes nothing else.  A token's logits depend on its sequence's tokens up to it.
        """
        x = self.weights.embedding[token_ids].float()
        rope = self._rope.gather(positions)
        heads = x.new_empty(len(x), self.config.num_heads, self.config.head_dim)
        eps, last = self.config.rms_norm_eps, len(self.weights.layers) - 1

        first = self.weights.layers[0]
        rows = self.kernels.norm_rows(x, first.attention_norm, eps, first.qkv.style)
        for index, layer in enumerate(self.weights.layers):
            targets = [(kv, plans[group_id]) for group_id, kv in store.layers[index]]
            self._attend(layer, rows, rope, targets, heads)
            if index < last:
                following = self.weights.layers[index + 1]
                product = self._after_attention(layer, heads, x)
                rows = self.kernels.add_norm_rows(x, product, following.attention_norm, eps, following.qkv.style)
        # Nothing reads the other tokens' last layer: only its K and V, which are in the store by now.
        return self._logits(x[logits_rows], heads[logits_rows])

    def _attend(
        self, layer: LayerWeights, rows: Rows, rope: tuple[Tensor, Tensor], targets: Targets, heads: Tensor
    ) -> None:
        """Fills ``heads`` [T, Hq, D] with the layer's attention output, group by group."""
        product = layer.qkv(rows, self._scratch)
        q = self.kernels.qkv_write(product, self._shape, layer.head_norms, rope, targets)
        scale = self.config.head_dim**-0.5
        for kv, plan in targets:
            if plan.sealed is not None:
                bound_blocks(kv, plan.sealed)
            sparse.attend(self.kernels, q, kv, plan, scale, heads)

    def _after_attention(self, layer: LayerWeights, heads: Tensor, x: Tensor) -> Product:
        """Output projection into ``x`` (in place) and the MLP up to its last product, which is not yet added."""
        rows = self.kernels.rotate_rows(heads.flatten(1), layer.output.style)
        product = layer.output(rows, self._scratch)
        rows = self.kernels.add_norm_rows(x, product, layer.mlp_norm, self.config.rms_norm_eps, layer.gate_up.style)
        rows = self.kernels.swiglu_rows(layer.gate_up(rows, self._scratch), layer.down.style)
        return layer.down(rows, self._scratch)

    def _logits(self, x: Tensor, heads: Tensor) -> Tensor:
        """The rest of the last layer and the LM head, for the chosen rows alone."""
        weights, kernels = self.weights, self.kernels
        logits = x.new_zeros(len(x), self.config.vocab_size)
        if len(x) == 0:
            return logits
        kernels.add_product(x, self._after_attention(weights.layers[-1], heads, x))
        rows = kernels.norm_rows(x, weights.final_norm, self.config.rms_norm_eps, weights.head.style)
        kernels.add_product(logits, weights.head(rows, self._scratch))
        return logits
