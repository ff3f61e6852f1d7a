"""RoPE scaling of GGUF files: what a config can say is said, the rest is refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from gguf_files import HEAD_DIM, tiny_weights, write_gguf
from kvasir.core.errors import ModelError
from kvasir.models.gguf import convert_gguf
from kvasir.models.gguf_rope import llama3_divisors, llama3_scaling, rope_scaling

PUBLISHED = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def transformers_divisors(theta: float, head_dim: int, scaling: dict[str, Any]) -> list[float]:
    """What transformers' own llama3 rule divides the plain inverse frequencies by."""
    config = LlamaConfig(
        hidden_size=head_dim * 4,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "llama3", "rope_theta": theta, **scaling},
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    return (plain / scaled).tolist()


@pytest.mark.parametrize(("theta", "head_dim"), [(500000.0, 64), (500000.0, 128)])
def test_published_llama3_factors_give_the_published_config(theta: float, head_dim: int) -> None:
    divisors = transformers_divisors(theta, head_dim, PUBLISHED)
    assert llama3_scaling(divisors, theta, head_dim) == {"rope_type": "llama3", **PUBLISHED}


@given(
    factor=st.floats(1.5, 64.0),
    original=st.integers(1024, 65536),
    low=st.floats(0.5, 2.0),
    width=st.floats(2.0, 10.0),
    head_dim=st.sampled_from([64, 128]),
)
def test_other_llama3_factors_are_solved_for(
    factor: float, original: int, low: float, width: float, head_dim: int
) -> None:
    """Whatever the parameters were, the config found gives the same factors."""
    divisors = llama3_divisors(500000.0, head_dim, factor, original, low, low + width)
    divisors = [float(np.float32(value)) for value in divisors]
    assume(sum(1.01 < value < factor * 0.99 for value in divisors) >= 2)
    assume(factor == max(divisors) or abs(factor - max(divisors)) < 1e-5)
    scaling = llama3_scaling(divisors, 500000.0, head_dim)
    assert scaling is not None
    found = llama3_divisors(
        500000.0,
        head_dim,
        scaling["factor"],
        scaling["original_max_position_embeddings"],
        scaling["low_freq_factor"],
        scaling["high_freq_factor"],
    )
    np.testing.assert_allclose(found, divisors, rtol=1e-3)


def test_factors_of_one_are_no_scaling() -> None:
    assert llama3_scaling([1.0] * 32, 10000.0, 64) is None


def test_factors_of_another_rule_are_refused() -> None:
    with pytest.raises(ModelError, match="does not follow the llama3"):
        llama3_scaling([1.0 + i % 3 for i in range(32)], 10000.0, 64)
    with pytest.raises(ModelError, match="has 16 values"):
        llama3_scaling([1.0] * 16, 10000.0, 64)


def scaling_of(**values: Any) -> dict[str, Any] | None:
    def lookup(key: str, default: Any = None) -> Any:
        return values.get(key.removeprefix("rope.").replace(".", "_"), default)

    return rope_scaling(lookup, 4096, 10000.0, 64, None)


def test_linear_and_yarn_are_said_in_the_config() -> None:
    assert scaling_of() is None
    assert scaling_of(scaling_type="none") is None
    assert scaling_of(scale_linear=2.0) == {"rope_type": "linear", "factor": 2.0}
    assert scaling_of(scaling_type="linear", scaling_factor=4.0) == {"rope_type": "linear", "factor": 4.0}
    yarn = scaling_of(scaling_type="yarn", scaling_factor=4.0, scaling_original_context_length=1024)
    assert yarn == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    louder = scaling_of(scaling_type="yarn", scaling_factor=4.0, scaling_attn_factor=0.5)
    assert louder is not None
    assert louder["attention_factor"] == pytest.approx(0.5 * (0.1 * math.log(4.0) + 1.0))
    assert louder["original_max_position_embeddings"] == 1024


@pytest.mark.parametrize(
    "values",
    [
        {"scaling_type": "longrope", "scaling_factor": 4.0},
        {"scaling_type": "yarn", "scaling_factor": 4.0, "scaling_yarn_log_multiplier": 0.1},
        {"scaling_type": "yarn", "scaling_factor": 4.0, "scaling_yarn_ext_factor": 0.5},
    ],
)
def test_what_no_config_can_say_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="not served"):
        scaling_of(**values)


def test_a_file_with_both_scalings_is_refused(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.full(HEAD_DIM // 2, 2.0, dtype=np.float32)}
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    file = write_gguf(tmp_path / "m.gguf", "llama", tiny_weights("llama"), metadata=metadata, extra_tensors=factors)
    with pytest.raises(ModelError, match="only one is served"):
        convert_gguf(file, tmp_path)
