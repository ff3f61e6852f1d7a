"""RoPE tables at the positions tiny models never reach."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from kvasir.models.rope import RotaryTable, inverse_frequencies
from kvasir.models.rope_config import RopeConfig, RopeKind


def test_a_long_table_is_transformers_to_the_last_bits() -> None:
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=576,
            num_attention_heads=9,
            max_position_embeddings=8192,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        )
    )
    cos, sin = theirs(torch.zeros(1), torch.arange(8192)[None])
    table = RotaryTable(RopeConfig(theta=100000.0, original_max_position=8192), 64, 8192)
    torch.testing.assert_close(table.cos, cos[0, :, :32], atol=2e-7, rtol=0.0)
    torch.testing.assert_close(table.sin, sin[0, :, :32], atol=2e-7, rtol=0.0)
    assert table.num_bytes == 2 * 8192 * 32 * 4


def test_gather_is_by_position() -> None:
    table = RotaryTable(RopeConfig(original_max_position=64), 8, 64)
    cos, sin = table.gather(torch.tensor([5, 0, 63]))
    assert cos.shape == sin.shape == (3, 4)
    assert torch.equal(cos[1], torch.ones(4))
    assert sin[0, 0].item() == pytest.approx(torch.tensor(5.0).sin().item(), abs=1e-6)
    with pytest.raises(IndexError):
        table.gather(torch.tensor([64]))


def test_dynamic_base_is_fixed_by_the_longest_context() -> None:
    rope = RopeConfig(kind=RopeKind.DYNAMIC, factor=2.0, original_max_position=1024)
    plain = inverse_frequencies(RopeConfig(original_max_position=1024), 64, 1024)
    assert torch.equal(inverse_frequencies(rope, 64, 100), plain)
    assert torch.equal(inverse_frequencies(rope, 64, 1024), plain)
    stretched = inverse_frequencies(rope, 64, 2048)
    assert stretched[0] == plain[0]
    assert (stretched[1:] < plain[1:]).all()
    assert rope.max_context(1024) == 2048


def test_linear_divides_positions() -> None:
    rope = RopeConfig(kind=RopeKind.LINEAR, factor=4.0, original_max_position=1024)
    plain = RopeConfig(original_max_position=1024)
    table, reference = RotaryTable(rope, 16, 64), RotaryTable(plain, 16, 64)
    torch.testing.assert_close(table.cos[4 * 7], reference.cos[7], atol=1e-6, rtol=0.0)


def test_yarn_scales_cos_and_sin() -> None:
    rope = RopeConfig(kind=RopeKind.YARN, factor=4.0, original_max_position=64, attention_factor=1.25)
    table = RotaryTable(rope, 16, 128)
    norm = table.cos.square() + table.sin.square()
    torch.testing.assert_close(norm, torch.full_like(norm, 1.25**2))
