"""The parameters of a decoder, ready to compute with: fused products, norms in fp32."""

from dataclasses import dataclass

from torch import Tensor

from kvasir.kernels.interface import HeadNorms
from kvasir.models.linear import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer.  ``qkv`` gives q, then k, then v of all heads; ``gate_up`` gives gate, then up."""

    attention_norm: Tensor
    qkv: Linear
    head_norms: HeadNorms | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear

    @property
    def num_bytes(self) -> int:
        norms = [self.attention_norm, self.mlp_norm]
        if self.head_norms is not None:
            norms += [self.head_norms.q, self.head_norms.k]
        linears = (self.qkv, self.output, self.gate_up, self.down)
        return sum(norm.nbytes for norm in norms) + sum(linear.num_bytes for linear in linears)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """``embedding`` [vocab_size, hidden_size] in fp32, fp16 or bf16; ``is_head_shared``: the head is the embedding."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Linear
    is_head_shared: bool

    @property
    def num_bytes(self) -> int:
        """Bytes of memory, shared tensors once."""
        head_bytes = 0 if self.is_head_shared else self.head.num_bytes
        layer_bytes = sum(layer.num_bytes for layer in self.layers)
        return self.embedding.nbytes + layer_bytes + self.final_norm.nbytes + head_bytes
