"""What the families differ in, as a table: biases, norms, gates, windows that their configs leave unsaid."""

from dataclasses import dataclass
from enum import Enum


class QKNorm(Enum):
    NONE = "none"
    HEAD = "head"
    """One vector of head_dim for q, one for k."""
    FULL = "full"
    """Over all heads at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """Defaults are a llama.  A bias of None is what the config says (``attention_bias``, ``mlp_bias``; absent: none).

    ``full_every``: where the config has a window but no layer types, each so-manieth layer is full (0: all slide);
    ``full_first``: the full ones lead their group.  ``default_window`` is what an absent ``sliding_window`` means.
    """

    is_gated: bool = True
    has_qkv_bias: bool | None = None
    has_output_bias: bool | None = None
    has_mlp_bias: bool | None = None
    num_norms: int = 2
    has_norm_bias: bool = False
    qk_norm: QKNorm = QKNorm.NONE
    default_head_dim: int | None = None
    is_tied: bool = False
    has_positions: bool = False
    num_extra_positions: int = 0
    has_head_bias: bool = False
    full_every: int = 0
    full_first: bool = False
    default_window: int | None = None


_LLAMA = FamilyTraits()
_ALL_BIASES = FamilyTraits(
    is_gated=False, has_qkv_bias=True, has_output_bias=True, has_mlp_bias=True, has_norm_bias=True
)
_QWEN2 = FamilyTraits(has_qkv_bias=True, has_output_bias=False, has_mlp_bias=False)
_QWEN3 = FamilyTraits(qk_norm=QKNorm.HEAD, default_head_dim=128)
_GEMMA3 = FamilyTraits(num_norms=4, qk_norm=QKNorm.HEAD, default_head_dim=256, is_tied=True, full_every=6)

FAMILIES: dict[str, FamilyTraits] = {
    **dict.fromkeys(("llama", "mistral", "mistral3", "mixtral", "ministral", "yi", "granite", "smollm3"), _LLAMA),
    **dict.fromkeys(("granitemoe", "granitemoehybrid", "internlm2", "internlm3", "seed_oss", "ernie4_5"), _LLAMA),
    **dict.fromkeys(("deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25"), _LLAMA),
    **dict.fromkeys(("phi3", "baichuan", "dots1", "minicpm", "jamba", "bamba", "falcon_h1", "kimi_linear"), _LLAMA),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen2_5_omni"), _QWEN2),
    **dict.fromkeys(("qwen3", "qwen3_vl"), _QWEN3),
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe"), FamilyTraits(qk_norm=QKNorm.HEAD, default_head_dim=256)),
    **dict.fromkeys(("qwen3_moe", "qwen3_vl_moe"), FamilyTraits(qk_norm=QKNorm.HEAD)),
    "gemma": FamilyTraits(is_tied=True, default_head_dim=256),
    "gemma2": FamilyTraits(num_norms=4, is_tied=True, default_head_dim=256, full_every=2, default_window=4096),
    "gemma3": _GEMMA3,
    "gemma3n": _GEMMA3,
    "gemma4": _GEMMA3,
    "gemma4_unified": _GEMMA3,
    "gpt_oss": FamilyTraits(has_qkv_bias=True, has_output_bias=True, full_every=2, default_window=128),
    "cohere": FamilyTraits(num_norms=1, is_tied=True),
    "cohere2": FamilyTraits(num_norms=1, is_tied=True, full_every=4, default_window=4096),
    "llama4": FamilyTraits(full_every=4, default_head_dim=128),
    "olmo2": FamilyTraits(qk_norm=QKNorm.FULL),
    "olmo3": FamilyTraits(qk_norm=QKNorm.FULL, full_every=4, default_window=4096),
    "olmoe": FamilyTraits(qk_norm=QKNorm.FULL),
    "exaone4": FamilyTraits(qk_norm=QKNorm.HEAD, full_every=4),
    "glm": FamilyTraits(has_output_bias=False),
    "glm4": FamilyTraits(num_norms=4, has_output_bias=False),
    "glm4_moe": FamilyTraits(has_output_bias=False),
    "minimax_m2": FamilyTraits(qk_norm=QKNorm.FULL),
    "afmoe": FamilyTraits(num_norms=4, qk_norm=QKNorm.HEAD, full_every=4),
    "lfm2": FamilyTraits(qk_norm=QKNorm.HEAD, is_tied=True),
    "lfm2_moe": FamilyTraits(qk_norm=QKNorm.HEAD, is_tied=True),
    "arcee": FamilyTraits(is_gated=False),
    "apertus": FamilyTraits(is_gated=False, qk_norm=QKNorm.HEAD),
    "nemotron": FamilyTraits(is_gated=False, has_norm_bias=True),
    "nemotron_h": FamilyTraits(is_gated=False, num_norms=1),
    "chatglm": FamilyTraits(has_qkv_bias=True, has_output_bias=False),
    "starcoder2": FamilyTraits(
        is_gated=False,
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        has_norm_bias=True,
        is_tied=True,
    ),
    "stablelm": FamilyTraits(has_norm_bias=True),
    "gpt2": FamilyTraits(
        is_gated=False,
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        has_norm_bias=True,
        is_tied=True,
        has_positions=True,
    ),
    "gpt_bigcode": FamilyTraits(
        is_gated=False,
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        has_norm_bias=True,
        is_tied=True,
        has_positions=True,
    ),
    "opt": FamilyTraits(
        is_gated=False,
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        has_norm_bias=True,
        is_tied=True,
        has_positions=True,
        num_extra_positions=2,
    ),
    "gpt_neox": _ALL_BIASES,
    "phi": FamilyTraits(
        is_gated=False,
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        has_norm_bias=True,
        num_norms=1,
        has_head_bias=True,
    ),
    "gptj": FamilyTraits(
        is_gated=False,
        has_qkv_bias=False,
        has_output_bias=False,
        has_mlp_bias=True,
        has_norm_bias=True,
        num_norms=1,
        has_head_bias=True,
    ),
    "bloom": FamilyTraits(
        is_gated=False, has_qkv_bias=True, has_output_bias=True, has_mlp_bias=True, has_norm_bias=True, is_tied=True
    ),
    "mpt": FamilyTraits(is_gated=False, has_qkv_bias=False, has_output_bias=False, has_mlp_bias=False, is_tied=True),
    "falcon": FamilyTraits(is_gated=False, has_norm_bias=True, num_norms=1, is_tied=True),
}


def traits_of(model_type: str) -> FamilyTraits | None:
    """None for a family that is not in the table."""
    return FAMILIES.get(model_type)
