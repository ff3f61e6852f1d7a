"""Layers that keep a fixed state for a sequence instead of a growing cache: delta nets, Mamba, short convolutions."""

from dataclasses import dataclass

from kvasir.kv.format_spec import TensorSpec
from kvasir.planner.config_fields import ConfigFields
from kvasir.planner.model_shape import LayerParameters

_CONV_DTYPE = "bfloat16"
_STATE_DTYPE = "float32"
"""What vLLM and SGLang keep the recurrent state in for these families."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentShape:
    """``state`` of one sequence in one layer, and the layer's weights."""

    state: tuple[TensorSpec, ...]
    parameters: LayerParameters


def read_delta_net(fields: ConfigFields) -> RecurrentShape:
    """Gated delta net of Qwen3-Next and Qwen3.5: a [value heads, key dim, value dim] matrix and a short convolution."""
    hidden = fields.count("hidden_size")
    key_heads, value_heads = fields.natural("linear_num_key_heads"), fields.natural("linear_num_value_heads")
    key_dim, value_dim = fields.natural("linear_key_head_dim"), fields.natural("linear_value_head_dim")
    kernel = fields.natural("linear_conv_kernel_dim", 4)
    keys, values = key_heads * key_dim, value_heads * value_dim
    channels = 2 * keys + values
    matrices = hidden * (2 * keys + 2 * values + 2 * value_heads) + values * hidden
    return RecurrentShape(
        state=(
            TensorSpec("conv", _CONV_DTYPE, (kernel - 1, channels)),
            TensorSpec("state", _STATE_DTYPE, (value_heads, key_dim, value_dim)),
        ),
        parameters=LayerParameters(attention=matrices, vectors=channels * kernel + 2 * value_heads + value_dim),
    )


def read_kimi_delta(fields: ConfigFields) -> RecurrentShape:
    """Kimi Delta Attention: separate convolutions of q, k and v, gates of low rank."""
    linear = fields.text.part("linear_attn_config") or fields.text
    hidden = fields.count("hidden_size")
    is_apart = linear is not fields.text
    heads = linear.count("num_heads" if is_apart else "linear_num_heads")
    dim = linear.count("head_dim" if is_apart else "linear_head_dim")
    kernel, inner = linear.count("short_conv_kernel_size" if is_apart else "linear_conv_kernel_dim", 4), heads * dim
    matrices = hidden * (3 * inner + heads + 2 * dim) + 2 * dim * inner + inner * hidden
    return RecurrentShape(
        state=(
            TensorSpec("conv", _CONV_DTYPE, (kernel - 1, 3 * inner)),
            TensorSpec("state", _STATE_DTYPE, (heads, dim, dim)),
        ),
        parameters=LayerParameters(attention=matrices, vectors=3 * inner * kernel + heads + inner + dim),
    )


def read_mamba2(fields: ConfigFields) -> RecurrentShape:
    """Mamba-2 as Nemotron-H, Bamba, Granite 4 and Falcon-H1 have it."""
    hidden = fields.count("hidden_size")
    heads = _first(fields, ("mamba_num_heads", "mamba_n_heads"))
    dim = _first(fields, ("mamba_head_dim", "mamba_d_head"))
    state = _first(fields, ("ssm_state_size", "mamba_d_state"))
    groups = _first(fields, ("n_groups", "mamba_n_groups"), 1)
    kernel = _first(fields, ("conv_kernel", "mamba_d_conv"), 4)
    inner = heads * dim
    channels = inner + 2 * groups * state
    matrices = hidden * (inner + channels + heads) + inner * hidden
    return RecurrentShape(
        state=(
            TensorSpec("conv", _CONV_DTYPE, (kernel - 1, channels)),
            TensorSpec("state", _STATE_DTYPE, (heads, dim, state)),
        ),
        parameters=LayerParameters(attention=matrices, vectors=channels * (kernel + 1) + 3 * heads + inner),
    )


def read_mamba1(fields: ConfigFields) -> RecurrentShape:
    """The first Mamba, as Jamba has it."""
    hidden = fields.count("hidden_size")
    inner = hidden * fields.natural("mamba_expand", 2)
    state, kernel = fields.natural("mamba_d_state", 16), fields.natural("mamba_d_conv", 4)
    rank = fields.natural("mamba_dt_rank", -(-hidden // 16))
    matrices = hidden * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner * hidden
    vectors = inner * (kernel + 1) + inner + inner * state + inner + rank + 2 * state
    return RecurrentShape(
        state=(
            TensorSpec("conv", _CONV_DTYPE, (kernel - 1, inner)),
            TensorSpec("state", _STATE_DTYPE, (inner, state)),
        ),
        parameters=LayerParameters(attention=matrices, vectors=vectors),
    )


def read_short_conv(fields: ConfigFields) -> RecurrentShape:
    """LFM2's gated short convolution: its state is the last few inputs."""
    hidden, kernel = fields.count("hidden_size"), fields.natural("conv_L_cache", 3)
    return RecurrentShape(
        state=(TensorSpec("conv", _CONV_DTYPE, (kernel - 1, hidden)),),
        parameters=LayerParameters(attention=4 * hidden * hidden, vectors=hidden * kernel),
    )


def _first(fields: ConfigFields, names: tuple[str, ...], default: int | None = None) -> int:
    name = next((name for name in names if fields.get(name) is not None), names[0])
    return fields.text.count(name, default)
