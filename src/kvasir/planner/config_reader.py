"""A config.json of any family we know as a ``ModelShape``; what is only guessed is said in its notes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvasir.core.errors import ModelError
from kvasir.models.foreign import ForeignConfig
from kvasir.planner.attention_reader import attention_biases, read_attention, read_windows
from kvasir.planner.config_fields import ConfigFields
from kvasir.planner.family_traits import FamilyTraits, traits_of
from kvasir.planner.feed_forward_reader import read_feed_forward
from kvasir.planner.model_shape import LayerParameters, LayerShape, ModelShape
from kvasir.planner.recurrent_reader import (
    RecurrentShape,
    read_delta_net,
    read_kimi_delta,
    read_mamba1,
    read_mamba2,
    read_short_conv,
)
from kvasir.planner.weight_formats import config_weight_format

_REFUSED = {
    **dict.fromkeys(("t5", "bart", "mt5", "t5gemma", "whisper", "mllama"), "has an encoder whose output is cached"),
    **dict.fromkeys(("bert", "roberta", "modernbert", "deberta", "xlm_roberta"), "keeps no KV cache"),
    **dict.fromkeys(("rwkv", "mamba", "mamba2", "falcon_mamba", "recurrent_gemma", "zamba", "zamba2"), "is not read"),
    **dict.fromkeys(("minimax", "longcat_flash", "xlstm"), "keeps states or caches in a way that is not read"),
    "deepseek_v4": "compresses its cache in a way that is not read",
}
_DELTA_NETS = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
_RECURRENT: dict[str, Callable[[ConfigFields], RecurrentShape]] = {
    **dict.fromkeys(_DELTA_NETS, read_delta_net),
    **dict.fromkeys(("nemotron_h", "bamba", "granitemoehybrid", "falcon_h1"), read_mamba2),
    **dict.fromkeys(("lfm2", "lfm2_moe"), read_short_conv),
    "jamba": read_mamba1,
    "kimi_linear": read_kimi_delta,
}
_LETTERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}
_RECURRENT_TYPES = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent"})


def read_config(values: dict[str, Any], name: str, source: str) -> ModelShape:
    """Translate a parsed config.json.  Raises ``ModelError`` when it lacks what a decoder must have, or is of a kind
    whose cache this cannot reckon."""
    fields = ConfigFields.of(ForeignConfig(values))
    architecture = fields.model_type
    reason = _REFUSED.get(architecture)
    if reason is not None or fields.get("is_encoder_decoder") is True:
        raise ModelError(f"The architecture {architecture} {reason or 'has an encoder'}; it cannot be planned for.")
    traits = traits_of(architecture)
    notes = _notes(fields, traits)
    traits = traits or FamilyTraits()
    layers = tuple(_read_layers(fields, traits))
    hidden, vocabulary = fields.count("hidden_size"), fields.count("vocab_size")
    head = 0 if fields.is_tied(traits.is_tied) else vocabulary * hidden
    embedding = vocabulary * _embedding_width(fields, hidden)
    return ModelShape(
        name=name,
        architecture=architecture,
        source=source,
        hidden_size=hidden,
        vocab_size=vocabulary,
        num_heads=fields.count("num_heads"),
        max_context=_context(fields),
        layers=layers,
        embedding_parameters=embedding,
        head_parameters=head,
        other_parameters=_other_parameters(fields, traits, head),
        weight_format=config_weight_format(fields),
        has_k_bias=_has_k_bias(fields, traits),
        notes=notes,
    )


def _notes(fields: ConfigFields, traits: FamilyTraits | None) -> tuple[str, ...]:
    notes = []
    if traits is None:
        notes.append(
            f"The architecture {fields.model_type} is not in the list: its cache is read from the config's fields, its "
            "weights are counted as a llama's."
        )
    if fields.is_multimodal:
        notes.append("Weights are those of the language model; vision or audio towers come on top.")
    if fields.natural("num_nextn_predict_layers"):
        notes.append("Multi-token-prediction layers are left out of weights and cache; speculation adds them.")
    return tuple(notes)


def _context(fields: ConfigFields) -> int:
    if fields.name_of("context") is None:
        return 8192
    return fields.count("context")


def _has_k_bias(fields: ConfigFields, traits: FamilyTraits) -> bool:
    return not fields.natural("kv_lora_rank") and attention_biases(fields, traits)[0]


def _embedding_width(fields: ConfigFields, hidden: int) -> int:
    return fields.natural("word_embed_proj_dim") or hidden


def _other_parameters(fields: ConfigFields, traits: FamilyTraits, head: int) -> int:
    """What is outside the layers besides embedding and head: final norm, learned positions, per-layer embeddings."""
    hidden = fields.count("hidden_size")
    norm = hidden * (2 if traits.has_norm_bias else 1)
    positions = (_context(fields) + traits.num_extra_positions) * hidden if traits.has_positions else 0
    other = norm + positions + (fields.count("vocab_size") if traits.has_head_bias and head else 0)
    if fields.model_type == "bloom":
        other += 2 * hidden  # norm of the embeddings
    width = fields.natural("hidden_size_per_layer_input")
    if width:  # small embeddings that every layer gets of its own, and their projection
        layers = fields.count("num_layers") * width
        other += fields.natural("vocab_size_per_layer_input", fields.count("vocab_size")) * layers
        other += hidden * layers + width
    return other


def _read_layers(fields: ConfigFields, traits: FamilyTraits) -> list[LayerShape]:
    if fields.model_type == "nemotron_h":
        return _pattern_layers(fields, traits)
    num_layers = fields.count("num_layers")
    windows = read_windows(fields, traits, num_layers)
    recurrent = _recurrent_layers(fields, num_layers)
    first_shared = num_layers - fields.natural("num_kv_shared_layers")
    layers = []
    for index in range(num_layers):
        both = fields.model_type == "falcon_h1"
        layer = LayerShape()
        if index in recurrent or both:
            layer = _with_state(layer, _RECURRENT[fields.model_type](fields))
        if index not in recurrent or both:
            layer = _with_attention(layer, fields, traits, windows[index])
        shares = index >= first_shared or index in _mapped_shares(fields)
        parts = (layer.parameters, read_feed_forward(fields, traits, index), _norms(fields, traits))
        layers.append(replace(layer, shares_cache=shares and bool(layer.caches), parameters=_sum(*parts)))
    return layers


def _mapped_shares(fields: ConfigFields) -> frozenset[int]:
    """Layers that reuse the cache of an earlier one, where the config lists them (Hunyuan's cross-layer attention)."""
    factor = fields.natural("cla_share_factor")
    if not factor or not fields.flag("use_cla"):
        return frozenset()
    return frozenset(i for i in range(fields.count("num_layers")) if i % factor)


def _with_attention(layer: LayerShape, fields: ConfigFields, traits: FamilyTraits, window: int | None) -> LayerShape:
    attention = read_attention(fields, traits, window)
    return replace(
        layer,
        caches=attention.caches,
        query_elements=attention.query_elements,
        parameters=_sum(layer.parameters, attention.parameters),
    )


def _with_state(layer: LayerShape, recurrent: RecurrentShape) -> LayerShape:
    return replace(layer, state=recurrent.state, parameters=_sum(layer.parameters, recurrent.parameters))


def _norms(fields: ConfigFields, traits: FamilyTraits) -> LayerParameters:
    hidden = fields.count("hidden_size")
    num_norms = traits.num_norms
    if fields.model_type == "falcon" and (
        fields.flag("new_decoder_architecture") or not fields.flag("parallel_attn", True)
    ):
        num_norms = fields.natural("num_ln_in_parallel_attn", 2)
    vectors = num_norms * hidden * (2 if traits.has_norm_bias else 1)
    width = fields.natural("hidden_size_per_layer_input")
    if width:  # gemma 3n and 4: gate and projection of the layer's own embedding, and its norm
        return LayerParameters(dense=2 * hidden * width, vectors=vectors + hidden + 1)
    return LayerParameters(vectors=vectors + (1 if fields.model_type.startswith("gemma4") else 0))


def _recurrent_layers(fields: ConfigFields, num_layers: int) -> frozenset[int]:
    """Indices of the layers that keep a state instead of a cache."""
    if fields.model_type not in _RECURRENT:
        return frozenset()
    types = fields.get("layer_types") or fields.get("layers_block_type")
    if isinstance(types, list):
        return frozenset(i for i, kind in enumerate(types) if kind in _RECURRENT_TYPES)
    linear = fields.text.part("linear_attn_config")
    if linear is not None:
        return frozenset(int(layer) - 1 for layer in linear.get("kda_layers") or ())
    attending = fields.get("attn_layer_indices") or fields.get("full_attn_idxs")
    if isinstance(attending, list):
        return frozenset(range(num_layers)) - frozenset(attending)
    if fields.get("attn_layer_period") is not None:
        period, offset = fields.natural("attn_layer_period"), fields.natural("attn_layer_offset")
        return frozenset(i for i in range(num_layers) if i % period != offset)
    if fields.get("full_attention_interval") is None and fields.model_type not in _DELTA_NETS:
        return frozenset()
    interval = fields.natural("full_attention_interval", 4)
    return frozenset(i for i in range(num_layers) if (i + 1) % interval)


def _pattern_layers(fields: ConfigFields, traits: FamilyTraits) -> list[LayerShape]:
    """Nemotron-H writes a letter a layer, and a layer has one part only: M Mamba, * attention, - dense, E experts."""
    pattern = fields.get("hybrid_override_pattern") or fields.get("layers_block_type")
    if not pattern:
        raise ModelError(f"{fields.text.label} has neither hybrid_override_pattern nor layers_block_type.")
    letters = [_LETTERS.get(part, part) for part in pattern]
    layers = []
    for index, letter in enumerate(letter for letter in letters if letter != "|"):
        layer = LayerShape()
        parts = [_norms(fields, traits)]
        if letter == "M":
            layer = _with_state(layer, read_mamba2(fields))
        elif letter == "*":
            layer = _with_attention(layer, fields, traits, None)
        else:
            parts.append(read_feed_forward(fields, traits, index, is_routed=letter == "E"))
        layers.append(replace(layer, parameters=_sum(layer.parameters, *parts)))
    return layers


def _sum(*parts: LayerParameters) -> LayerParameters:
    return LayerParameters(
        attention=sum(part.attention for part in parts),
        dense=sum(part.dense for part in parts),
        expert=sum(part.expert for part in parts),
        num_experts=sum(part.num_experts for part in parts),
        num_active_experts=sum(part.num_active_experts for part in parts),
        vectors=sum(part.vectors for part in parts),
    )
