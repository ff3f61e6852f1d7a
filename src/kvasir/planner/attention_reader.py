"""What an attention layer stores and weighs: plain heads, latents (MLA), and which layers slide."""

from dataclasses import dataclass

from kvasir.core.errors import ModelError
from kvasir.planner.config_fields import ConfigFields
from kvasir.planner.family_traits import FamilyTraits, QKNorm
from kvasir.planner.model_shape import LayerCache, LayerParameters

FULL_TYPES = frozenset({"full_attention", "attention", "full", "global", "global_attention"})
SLIDING_TYPES = frozenset({"sliding_attention", "sliding", "local_attention", "local"})
CHUNKED_TYPES = frozenset({"chunked_attention"})

_INDEX_SCALE_BYTES = 4
_FP8_INDEX_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """One attention layer: its stores, its matrices, its multiply-adds for each pair of query and key."""

    caches: tuple[LayerCache, ...]
    parameters: LayerParameters
    query_elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCounts:
    """Heads of one layer, where families let layers differ."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int


def read_windows(fields: ConfigFields, traits: FamilyTraits, num_layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer, None for full attention (and for layers without any)."""
    types = fields.get("layer_types")
    window = _window(fields, traits)
    if isinstance(types, list) and types:
        return tuple(_typed_window(fields, types[i % len(types)], window) for i in range(num_layers))
    pattern = fields.get("hybrid_layer_pattern")
    if isinstance(pattern, list):  # 1 slides
        return tuple(window if slides else None for slides in pattern)
    chunk = fields.natural("attention_chunk_size")
    if chunk:
        full = fields.get("no_rope_layers") or [int((i + 1) % 4 != 0) for i in range(num_layers)]
        return tuple(chunk if uses_rope else None for uses_rope in full)
    if window is None:
        return (None,) * num_layers
    if fields.get("use_sliding_window") is not None:
        first = fields.natural("max_window_layers") if fields.flag("use_sliding_window") else num_layers
        return tuple(window if i >= first else None for i in range(num_layers))
    if fields.model_type.startswith("qwen2"):
        return (None,) * num_layers
    every = _full_every(fields, traits)
    return tuple(None if every and (i + 1) % every == 0 else window for i in range(num_layers))


def _window(fields: ConfigFields, traits: FamilyTraits) -> int | None:
    for name in ("sliding_window", "sliding_window_size", "window_size"):
        value = fields.get(name)
        if value is not None:
            return fields.natural(name) or None
        if name in fields.text.values:
            return None
    return traits.default_window


def _full_every(fields: ConfigFields, traits: FamilyTraits) -> int:
    for name in ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"):
        value = fields.get(name)
        if isinstance(value, str):
            return len(value)
        if value is not None:
            return fields.natural(name)
    return traits.full_every


def _typed_window(fields: ConfigFields, kind: str, window: int | None) -> int | None:
    if kind in SLIDING_TYPES:
        if window is None:
            raise ModelError(f"{fields.text.label} has {kind} layers, but no sliding_window.")
        return window
    return fields.natural("attention_chunk_size", 8192) if kind in CHUNKED_TYPES else None


def read_heads(fields: ConfigFields, traits: FamilyTraits, window: int | None) -> HeadCounts:
    """Heads of a layer that slides or not: some families give their full layers other heads than the others."""
    num_heads = fields.count("num_heads")
    num_kv_heads = _num_kv_heads(fields, num_heads)
    default = traits.default_head_dim or fields.count("hidden_size") // num_heads
    head_dim = fields.count("head_dim", default)
    v_head_dim = fields.natural("v_head_dim") or head_dim
    if window is None and fields.model_type.startswith("gemma4"):
        head_dim = v_head_dim = fields.natural("global_head_dim", 512)
        if fields.flag("attention_k_eq_v"):
            num_kv_heads = fields.natural("num_global_key_value_heads") or num_kv_heads
    if window is not None and fields.get("swa_num_key_value_heads") is not None:
        num_heads = fields.natural("swa_num_attention_heads") or num_heads
        num_kv_heads = fields.natural("swa_num_key_value_heads")
        head_dim = fields.natural("swa_head_dim") or head_dim
        v_head_dim = fields.natural("swa_v_head_dim") or v_head_dim
    return HeadCounts(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, v_head_dim=v_head_dim)


def _num_kv_heads(fields: ConfigFields, num_heads: int) -> int:
    if fields.model_type == "falcon":
        if fields.flag("new_decoder_architecture"):
            return fields.count("num_kv_heads", num_heads)
        return 1 if fields.flag("multi_query", True) else num_heads
    if fields.model_type == "gpt_bigcode":
        return 1 if fields.flag("multi_query", True) else num_heads
    if fields.model_type == "chatglm" and not fields.flag("multi_query_attention"):
        return num_heads
    return fields.count("num_kv_heads", num_heads)


def read_attention(fields: ConfigFields, traits: FamilyTraits, window: int | None) -> AttentionShape:
    if fields.natural("kv_lora_rank"):
        return _read_latent(fields, window)
    heads = read_heads(fields, traits, window)
    cache = LayerCache(num_kv_heads=heads.num_kv_heads, k_dim=heads.head_dim, v_dim=heads.v_head_dim, window=window)
    return AttentionShape(
        caches=(cache,),
        parameters=_plain_parameters(fields, traits, heads, is_full=window is None),
        query_elements=heads.num_heads * (heads.head_dim + heads.v_head_dim),
    )


def _plain_parameters(
    fields: ConfigFields, traits: FamilyTraits, heads: HeadCounts, *, is_full: bool
) -> LayerParameters:
    hidden = fields.count("hidden_size")
    queries, keys = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
    values = heads.num_kv_heads * heads.v_head_dim
    attended = heads.num_heads * heads.v_head_dim
    gated = queries if _has_query_gate(fields) else 0
    has_v = not (is_full and fields.model_type.startswith("gemma4") and fields.flag("attention_k_eq_v"))
    matrices = hidden * (queries + gated + keys + (values if has_v else 0)) + attended * hidden
    qkv_bias, output_bias = attention_biases(fields, traits)
    vectors = (queries + gated + keys + values if qkv_bias else 0) + (hidden if output_bias else 0)
    vectors += _qk_norm_size(fields, traits, heads)
    if fields.model_type == "gpt_oss":
        vectors += heads.num_heads  # sinks
    return LayerParameters(attention=matrices, vectors=vectors)


def _has_query_gate(fields: ConfigFields) -> bool:
    return fields.model_type in ("qwen3_next", "qwen3_5", "qwen3_5_moe", "afmoe")


def _qk_norm_size(fields: ConfigFields, traits: FamilyTraits, heads: HeadCounts) -> int:
    uses_norm = traits.qk_norm
    if fields.model_type == "glm4_moe":
        uses_norm = QKNorm.HEAD if fields.flag("use_qk_norm") else QKNorm.NONE
    if uses_norm is QKNorm.FULL:
        return (heads.num_heads + heads.num_kv_heads) * heads.head_dim
    return 2 * heads.head_dim if uses_norm is QKNorm.HEAD else 0


def attention_biases(fields: ConfigFields, traits: FamilyTraits) -> tuple[bool, bool]:
    """Whether q, k and v have biases, and whether the output product has one."""
    said = any(fields.get(name) is True for name in ("attention_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias"))
    if fields.model_type == "falcon":
        said = fields.flag("bias")
    qkv = traits.has_qkv_bias if traits.has_qkv_bias is not None else said
    if fields.model_type == "starcoder2":
        qkv = fields.flag("use_bias", True)
        return qkv, qkv
    follows = (said and fields.get("attention_bias") is True) or (said and fields.model_type == "falcon")
    if fields.get("attention_out_bias") is not None:
        follows = fields.flag("attention_out_bias")
    output = traits.has_output_bias if traits.has_output_bias is not None else follows
    return qkv, output


def _read_latent(fields: ConfigFields, window: int | None) -> AttentionShape:
    """Multi-head latent attention: one latent and one rotary key a token, whatever the number of heads."""
    hidden, num_heads = fields.count("hidden_size"), fields.count("num_heads")
    rank, rope = fields.natural("kv_lora_rank"), fields.natural("qk_rope_head_dim", 64)
    nope, v_dim = fields.natural("qk_nope_head_dim", 128), fields.natural("v_head_dim", 128)
    q_rank = fields.natural("q_lora_rank")
    queries = num_heads * (nope + rope)
    q_matrices = hidden * q_rank + q_rank * queries if q_rank else hidden * queries
    matrices = q_matrices + hidden * (rank + rope) + rank * num_heads * (nope + v_dim) + num_heads * v_dim * hidden
    caches = [LayerCache(num_kv_heads=1, k_dim=rank + rope, v_dim=0, window=window, is_latent=True)]
    vectors = rank + q_rank
    index_dim = fields.natural("index_head_dim")
    if index_dim:  # sparse attention keeps one small key a token to choose by, in 8 bits with a scale for each 128
        caches.append(_index_cache(index_dim))
        index_heads = fields.natural("index_n_heads", 64)
        matrices += q_rank * index_heads * index_dim + hidden * (index_dim + index_heads)
        vectors += 2 * index_dim
    return AttentionShape(
        caches=tuple(caches),
        parameters=LayerParameters(attention=matrices, vectors=vectors),
        query_elements=num_heads * (2 * rank + rope),
    )


def _index_cache(index_dim: int) -> LayerCache:
    scales = _INDEX_SCALE_BYTES * -(-index_dim // _FP8_INDEX_BLOCK)
    return LayerCache(num_kv_heads=1, k_dim=index_dim + scales, v_dim=0, is_latent=True, is_raw=True)
