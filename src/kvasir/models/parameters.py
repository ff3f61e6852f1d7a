"""The parameters a model must have: names in Hugging Face layout and shapes.  No torch: loader and planner share it."""

import re

from kvasir.models.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

_RECOMPUTED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def layer_name(layer: int, part: str) -> str:
    """``part`` is a name within the layer, such as "mlp.up_proj.weight"."""
    return f"model.layers.{layer}.{part}"


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of one layer's parameters by their name within the layer; matrices are [out_features, in_features]."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.has_qkv_bias:
        shapes |= {
            "self_attn.q_proj.bias": (queries,),
            "self_attn.k_proj.bias": (keys,),
            "self_attn.v_proj.bias": (keys,),
        }
    if config.has_output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if config.has_mlp_bias:
        shapes |= {"mlp.gate_proj.bias": (inner,), "mlp.up_proj.bias": (inner,), "mlp.down_proj.bias": (hidden,)}
    if config.has_qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return shapes


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter of the model.  A tied LM head is the embedding and has no entry of its own."""
    vocabulary = (config.vocab_size, config.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: vocabulary, FINAL_NORM: (config.hidden_size,)}
    if not config.tie_word_embeddings:
        shapes[HEAD] = vocabulary
    of_layer = layer_shapes(config)
    for layer in range(config.num_layers):
        shapes |= {layer_name(layer, part): shape for part, shape in of_layer.items()}
    return shapes


def is_recomputed(name: str) -> bool:
    """Whether ``name`` is a table that old checkpoints store and every reader computes for itself."""
    return _RECOMPUTED.fullmatch(name) is not None
