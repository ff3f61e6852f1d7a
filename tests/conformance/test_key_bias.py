"""A model with large key biases, as Qwen2's have: plain int4 keys fail on it, centred ones do not."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kvasir.formats.constants import KVConstants
from kvasir.formats.feedback import key_feedback
from kvasir.formats.store import KVStore
from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kernels.interface import AttentionPlan, HeadShape, Kernels, Product
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.retention import FULL

DIM, HEADS, TOKENS, VOCABULARY = 64, 2, 400, 500
SHAPE = HeadShape(4, HEADS, DIM)


@dataclass(frozen=True)
class BiasedModel:
    """One attention layer between an embedding and a head: next-token logits [T, vocabulary] of ``tokens`` [T].

    The bias of K is some fifty times the size of what differs between keys, in channels that RoPE hardly turns.
    """

    embedding: Tensor
    project: Tensor
    bias: Tensor
    head: Tensor

    @classmethod
    def random(cls) -> "BiasedModel":
        generator = torch.Generator().manual_seed(0)
        width = (SHAPE.num_heads + 2 * HEADS) * DIM
        bias = torch.zeros(SHAPE.num_heads + 2 * HEADS, DIM)
        slow = torch.cat([torch.arange(16, 32), torch.arange(48, 64)])
        bias[SHAPE.num_heads : SHAPE.num_heads + HEADS, slow] = 60 * torch.randn(HEADS, 32, generator=generator)
        return cls(
            embedding=torch.randn(VOCABULARY, 128, generator=generator),
            project=torch.randn(128, width, generator=generator) / 128**0.5,
            bias=bias.flatten(),
            head=torch.randn(SHAPE.num_heads * DIM, VOCABULARY, generator=generator) / 16,
        )

    def product(self, tokens: Tensor) -> Product:
        return Product(self.embedding[tokens] @ self.project, bias=self.bias)

    def logits(self, kernels: Kernels, tokens: Tensor, dtype: KVDtype, constants: KVConstants | None) -> Tensor:
        geometry = KVGeometry(num_layers=1, num_kv_heads=HEADS, head_dim=DIM, sliding_windows=(None,))
        layout = KVLayout.from_geometry(geometry, block_size=16, k_dtype=dtype, v_dtype=KVDtype.FP32)
        num_blocks = -(-len(tokens) // 16)
        kv = KVStore(layout, (num_blocks,), constants).layers[0][0][1]
        plan = AttentionPlan(
            query_start=torch.tensor([0, len(tokens)], dtype=torch.int32),
            first_position=torch.zeros(1, dtype=torch.int32),
            block_table=torch.arange(num_blocks, dtype=torch.int32)[None],
            slots=torch.arange(len(tokens)),
            block_size=16,
            retention=FULL,
        )
        q = kernels.qkv_write(self.product(tokens), SHAPE, None, rotation(len(tokens)), [(kv, plan)])
        out = torch.empty_like(q)
        kernels.attend(q, kv, plan, 3 * DIM**-0.5, out)
        return out.flatten(1) @ self.head

    def calibrate(self, tokens: Tensor) -> KVConstants:
        """Mean of K after RoPE, and what queries look at, of a text."""
        product = self.product(tokens)
        heads = (product.data + self.bias).unflatten(-1, (-1, DIM))
        cos, sin = rotation(len(tokens))
        low, high = heads.chunk(2, dim=-1)
        turned = torch.cat([low * cos[:, None] - high * sin[:, None], high * cos[:, None] + low * sin[:, None]], dim=-1)
        q, k = turned[:, : SHAPE.num_heads].double(), turned[:, SHAPE.num_heads : SHAPE.num_heads + HEADS]
        moment = torch.einsum("thgd,thge->hde", *[q.unflatten(1, (HEADS, -1))] * 2)
        return KVConstants(k_center=k.mean(dim=0)[None], k_feedback=key_feedback(moment)[None])


def rotation(num_tokens: int) -> tuple[Tensor, Tensor]:
    angles = torch.arange(num_tokens)[:, None].double() * 1e6 ** (-torch.arange(0, DIM, 2).double() / DIM)
    return angles.cos().float(), angles.sin().float()


def divergence(exact: Tensor, other: Tensor) -> float:
    """Mean KL in nats."""
    p, q = torch.log_softmax(exact.double(), dim=-1), torch.log_softmax(other.double(), dim=-1)
    return (p.exp() * (p - q)).sum(dim=-1).mean().item()


@pytest.fixture(scope="module")
def model() -> BiasedModel:
    return BiasedModel.random()


def text(seed: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(seed))


def test_plain_int4_keys_fail_and_centred_ones_do_not(cpu: CpuKernels, model: BiasedModel) -> None:
    tokens, constants = text(1), model.calibrate(text(2))
    exact = model.logits(cpu, tokens, KVDtype.FP32, None)
    plain = divergence(exact, model.logits(cpu, tokens, KVDtype.INT4, None))
    centred = divergence(exact, model.logits(cpu, tokens, KVDtype.INT4, constants))
    assert plain > 0.3, plain
    assert centred < 0.02, centred
    assert centred < divergence(exact, model.logits(cpu, tokens, KVDtype.INT8, None)), "better than twice the bits"
