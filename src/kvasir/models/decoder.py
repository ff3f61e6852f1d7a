"""The decoder of all families: one loop over layers, written against the kernel contract."""

import torch
from torch import Tensor

from kvasir.formats.key_bounds import bound_blocks
from kvasir.formats.store import KVStore
from kvasir.kernels import sparse
from kvasir.kernels.interface import AttentionPlan, Best, HeadShape, Kernels, LayerKV, Product, Rows
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

        The step is that of ``forward_rows``.
        """
        return self.logits(self.forward_rows(token_ids, positions, store, plans, logits_rows))

    @torch.inference_mode()
    def forward_rows(
        self,
        token_ids: Tensor,
        positions: Tensor,
        store: KVStore,
        plans: tuple[AttentionPlan, ...],
        chosen: Tensor,
    ) -> Tensor:
        """What the final norm takes, fp32 [S, hidden_size], of the tokens ``chosen`` (int64 [S], indices into the
        step's tokens); ``logits`` and ``best_tokens`` take it from there.

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
        x, heads = x[chosen], heads[chosen]
        if len(x):
            self.kernels.add_product(x, self._after_attention(self.weights.layers[-1], heads, x))
        return x

    @torch.inference_mode()
    def logits(self, x: Tensor) -> Tensor:
        """Logits, fp32 [S, vocab_size], of rows of ``forward_rows``."""
        logits = x.new_zeros(len(x), self.config.vocab_size)
        if len(x):
            self.kernels.add_product(logits, self.weights.head(self._head_rows(x), self._scratch, self.kernels))
        return logits

    @torch.inference_mode()
    def best_tokens(self, x: Tensor) -> Best:
        """The largest logit of rows of ``forward_rows``, [S] each; the logits themselves are not stored anywhere."""
        return self.weights.head.best(self._head_rows(x), self._scratch, self.kernels)

    def _head_rows(self, x: Tensor) -> Rows:
        return self.kernels.norm_rows(x, self.weights.final_norm, self.config.rms_norm_eps, self.weights.head.style)

    def _attend(
        self, layer: LayerWeights, rows: Rows, rope: tuple[Tensor, Tensor], targets: Targets, heads: Tensor
    ) -> None:
        """Fills ``heads`` [T, Hq, D] with the layer's attention output, group by group."""
        product = layer.qkv(rows, self._scratch, self.kernels)
        q = self.kernels.qkv_write(product, self._shape, layer.head_norms, rope, targets)
        scale = self.config.head_dim**-0.5
        for kv, plan in targets:
            if plan.sealed is not None:
                bound_blocks(kv, plan.sealed)
            sparse.attend(self.kernels, q, kv, plan, scale, heads)

    def _after_attention(self, layer: LayerWeights, heads: Tensor, x: Tensor) -> Product:
        """Output projection into ``x`` (in place) and the MLP up to its last product, which is not yet added."""
        rows = self.kernels.rotate_rows(heads.flatten(1), layer.output.style)
        product = layer.output(rows, self._scratch, self.kernels)
        rows = self.kernels.add_norm_rows(x, product, layer.mlp_norm, self.config.rms_norm_eps, layer.gate_up.style)
        rows = self.kernels.swiglu_rows(layer.gate_up(rows, self._scratch, self.kernels), layer.down.style)
        return layer.down(rows, self._scratch, self.kernels)
