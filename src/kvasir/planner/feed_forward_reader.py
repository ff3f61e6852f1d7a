"""The feed-forward part of each layer: dense, or routed to a few of many experts."""

from kvasir.planner.config_fields import ConfigFields
from kvasir.planner.family_traits import FamilyTraits
from kvasir.planner.model_shape import LayerParameters


def read_feed_forward(
    fields: ConfigFields, traits: FamilyTraits, layer: int, *, is_routed: bool | None = None
) -> LayerParameters:
    """``is_routed`` None: as the config says of ``layer``."""
    num_experts = fields.count("num_experts", 1) if fields.name_of("num_experts") else 0
    if num_experts > 1 and (_is_routed(fields, layer) if is_routed is None else is_routed):
        return _experts(fields, traits, num_experts)
    return _dense(fields, traits, _dense_size(fields, layer))


def _dense(fields: ConfigFields, traits: FamilyTraits, inner: int) -> LayerParameters:
    hidden = fields.count("hidden_size")
    has_bias = traits.has_mlp_bias if traits.has_mlp_bias is not None else fields.get("mlp_bias") is True
    if fields.model_type == "starcoder2":
        has_bias = fields.flag("use_bias", True)
    if fields.model_type == "falcon":
        has_bias = fields.flag("bias")
    num_up = 2 if traits.is_gated else 1
    biases = inner * num_up + hidden if has_bias else 0
    return LayerParameters(dense=(num_up + 1) * hidden * inner, vectors=biases)


def _dense_size(fields: ConfigFields, layer: int) -> int:
    if fields.get("intermediate_size_mlp") is not None:
        return fields.natural("intermediate_size_mlp")
    if fields.model_type == "lfm2":
        return _lfm_size(fields)
    sizes = fields.get("intermediate_size")
    if isinstance(sizes, list):  # gemma3n says it per layer
        return int(sizes[layer])
    hidden = fields.count("hidden_size")
    size = fields.count("intermediate_size", 4 * hidden)
    return 2 * size if _is_double_wide(fields, layer) else size


def _lfm_size(fields: ConfigFields) -> int:
    size = fields.natural("block_ff_dim") or fields.count("intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return size
    multiplier = float(fields.get("block_ffn_dim_multiplier") or 1.0)
    unit = fields.natural("block_multiple_of", 256)
    return -(-int(multiplier * int(2 * size / 3)) // unit) * unit


def _is_double_wide(fields: ConfigFields, layer: int) -> bool:
    if not fields.flag("use_double_wide_mlp"):
        return False
    return layer >= fields.count("num_layers") - fields.natural("num_kv_shared_layers")


def _is_routed(fields: ConfigFields, layer: int) -> bool:
    if fields.get("enable_moe_block") is False or layer < fields.natural("first_k_dense_replace"):
        return False
    if layer < fields.natural("num_dense_layers"):
        return False
    for name, routed_as in (("mlp_layer_types", "sparse"), ("moe_layer_freq", 1)):
        kinds = fields.get(name)
        if isinstance(kinds, list):
            return kinds[layer] == routed_as
    dense = fields.get("mlp_only_layers")
    if isinstance(dense, list) and layer in dense:
        return False
    routed = fields.get("moe_layers")
    if isinstance(routed, list):
        return layer in routed
    step = fields.natural("decoder_sparse_step", 1) or 1
    every = fields.natural("interleave_moe_layer_step", step) or step
    if fields.get("expert_layer_period") is not None:
        return layer % fields.natural("expert_layer_period") == fields.natural("expert_layer_offset")
    return (layer + 1) % every == 0


def _experts(fields: ConfigFields, traits: FamilyTraits, num_experts: int) -> LayerParameters:
    hidden = fields.count("hidden_size")
    inner = fields.natural("moe_intermediate_size") or fields.count("intermediate_size")
    num_matrices = 3 if traits.is_gated else 2
    shared = _shared_size(fields, inner)
    dense = num_matrices * hidden * shared + hidden * num_experts
    if fields.model_type.startswith("gemma4"):  # a dense feed-forward beside the experts
        dense += num_matrices * hidden * fields.count("intermediate_size")
    vectors = hidden if fields.natural("shared_expert_intermediate_size") else 0  # gate of the shared expert
    vectors += num_experts if _has_router_bias(fields) else 0
    if fields.model_type == "gpt_oss":
        vectors += num_experts * (2 * inner + hidden)
    if fields.model_type.startswith("gemma4"):  # three more norms, the router's scale, one for each expert
        vectors += 4 * hidden + num_experts
    return LayerParameters(
        dense=dense,
        expert=num_matrices * hidden * inner,
        num_experts=num_experts,
        num_active_experts=fields.count("top_k", 1),
        vectors=vectors,
    )


def _shared_size(fields: ConfigFields, inner: int) -> int:
    """Width of what every token passes besides its experts."""
    if fields.natural("shared_expert_intermediate_size"):
        return fields.natural("shared_expert_intermediate_size")
    if fields.model_type == "llama4":
        return inner
    if fields.natural("shared_intermediate_size"):
        return fields.natural("shared_intermediate_size")
    shared = fields.natural("n_shared_experts") or fields.natural("num_shared_experts")
    return shared * (fields.natural("moe_shared_expert_intermediate_size") or inner)


def _has_router_bias(fields: ConfigFields) -> bool:
    return fields.model_type in (
        *("gpt_oss", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe", "dots1", "minimax_m2", "afmoe"),
        "nemotron_h",
        "lfm2_moe",
    )
