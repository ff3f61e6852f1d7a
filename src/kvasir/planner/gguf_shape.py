"""A GGUF header as a ``ModelShape``: the cache from its metadata, the weights from its tensors, to the byte."""

import re
from pathlib import Path
from typing import Any

from kvasir.core.errors import ModelError
from kvasir.kv.format_spec import TensorSpec
from kvasir.planner.family_traits import traits_of
from kvasir.planner.gguf_header import GgufHeader, GgufTensor, read_gguf_header
from kvasir.planner.model_shape import LayerCache, LayerParameters, LayerShape, ModelShape

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
STORED_FORMAT = "gguf"
"""The weight format of a shape whose bytes are those of its file."""


def read_gguf(file: Path) -> ModelShape:
    return gguf_shape(read_gguf_header(file), file.stem)


def gguf_shape(header: GgufHeader, name: str) -> ModelShape:
    """Raises ``ModelError`` when the header lacks what a decoder must have."""
    metadata = _Metadata(header.metadata)
    num_layers = metadata.count("block_count") - metadata.natural("nextn_predict_layers")
    parameters = _layer_parameters(header.tensors, metadata)
    hidden = metadata.count("embedding_length")
    outside = {t.name: t.num_elements for t in header.tensors if not _BLOCK.match(t.name)}
    embedding = outside.pop("token_embd.weight", 0)
    head = outside.pop("output.weight", 0)
    if not embedding:
        raise ModelError("The GGUF file has no token_embd.weight, so it is no whole language model.")
    layers = tuple(_layer(metadata, i, num_layers, parameters.get(i, LayerParameters())) for i in range(num_layers))
    return ModelShape(
        name=str(metadata.values.get("general.name") or name),
        architecture=metadata.architecture,
        source="GGUF header",
        hidden_size=hidden,
        vocab_size=embedding // hidden,
        num_heads=metadata.per_layer("attention.head_count", num_layers)[0],
        max_context=metadata.count("context_length"),
        layers=layers,
        embedding_parameters=embedding,
        head_parameters=head,
        other_parameters=sum(outside.values()),
        weight_format=STORED_FORMAT,
        stored_weight_bytes=header.tensor_bytes,
        has_k_bias=any(t.name.endswith("attn_k.bias") for t in header.tensors),
        notes=_notes(metadata, header.tensors),
    )


def _notes(metadata: "_Metadata", tensors: tuple[GgufTensor, ...]) -> tuple[str, ...]:
    if metadata.natural("attention.kv_lora_rank") and any(t.name.endswith("attn_kv_b.weight") for t in tensors):
        return ("This file is from before llama.cpp cached the latent: it stores decompressed K and V of every head.",)
    return ()


class _Metadata:
    """Values under the architecture's prefix."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.architecture = str(values.get("general.architecture"))

    def get(self, key: str) -> Any:
        return self.values.get(f"{self.architecture}.{key}")

    def count(self, key: str) -> int:
        value = self.get(key)
        if not isinstance(value, int) or value < 1:
            raise ModelError(f"The GGUF file needs a whole number as {self.architecture}.{key}, but has {value!r}.")
        return value

    def natural(self, key: str, default: int = 0) -> int:
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def per_layer(self, key: str, num_layers: int, default: int | None = None) -> list[int]:
        value = self.get(key)
        if isinstance(value, list):
            return [int(entry) for entry in value[:num_layers]] + [int(value[-1])] * (num_layers - len(value))
        return [self.count(key) if value is not None or default is None else default] * num_layers


def _layer_parameters(tensors: tuple[GgufTensor, ...], metadata: _Metadata) -> dict[int, LayerParameters]:
    sums: dict[int, dict[str, int]] = {}
    num_experts = metadata.natural("expert_count")
    for tensor in tensors:
        match = _BLOCK.match(tensor.name)
        if match:
            kind = _kind(match[2], len(tensor.shape))
            of_layer = sums.setdefault(int(match[1]), {})
            of_layer[kind] = of_layer.get(kind, 0) + tensor.num_elements
    return {
        layer: LayerParameters(
            attention=found.get("attention", 0),
            dense=found.get("dense", 0),
            expert=found.get("experts", 0) // num_experts if num_experts else 0,
            num_experts=num_experts if "experts" in found else 0,
            num_active_experts=metadata.natural("expert_used_count") if "experts" in found else 0,
            vectors=found.get("vectors", 0),
        )
        for layer, found in sums.items()
    }


def _kind(name: str, num_dimensions: int) -> str:
    if "_exps" in name and num_dimensions == 3:
        return "experts"
    if num_dimensions < 2 or "conv" in name:
        return "vectors"
    return "attention" if name.startswith(("attn", "ssm")) else "dense"


def _layer(metadata: _Metadata, index: int, num_layers: int, parameters: LayerParameters) -> LayerShape:
    if _is_recurrent(metadata, index, num_layers):
        return LayerShape(state=_state(metadata), parameters=parameters)
    kv_heads = metadata.per_layer(
        "attention.head_count_kv", num_layers, metadata.per_layer("attention.head_count", num_layers)[index]
    )[index]
    if kv_heads == 0:
        return LayerShape(parameters=parameters)
    num_heads = metadata.per_layer("attention.head_count", num_layers)[index]
    window = _window(metadata, index)
    default = metadata.count("embedding_length") // num_heads
    suffix = "_swa" if window is not None and metadata.get("attention.key_length_swa") else ""
    k_dim = metadata.natural(f"attention.key_length{suffix}", default)
    v_dim = metadata.natural(f"attention.value_length{suffix}", k_dim)
    is_latent = metadata.get("attention.key_length_mla") is not None
    cache = LayerCache(
        num_kv_heads=kv_heads, k_dim=k_dim, v_dim=0 if is_latent else v_dim, window=window, is_latent=is_latent
    )
    return LayerShape(
        caches=(cache,),
        shares_cache=index >= num_layers - metadata.natural("attention.shared_kv_layers"),
        query_elements=num_heads * (k_dim + v_dim),
        parameters=parameters,
    )


def _window(metadata: _Metadata, index: int) -> int | None:
    window = metadata.natural("attention.sliding_window")
    if not window or metadata.architecture in ("phi3", "qwen2", "qwen3"):  # llama.cpp gives these a full cache
        return None
    pattern = metadata.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return window if pattern[index % len(pattern)] else None
    traits = traits_of(metadata.architecture.replace("-", "_"))
    every = metadata.natural("attention.sliding_window_pattern", traits.full_every if traits else 0)
    return None if every and (index + 1) % every == 0 else window


def _is_recurrent(metadata: _Metadata, index: int, num_layers: int) -> bool:
    if not metadata.natural("ssm.state_size"):
        return False
    interval = metadata.natural("full_attention_interval")
    if interval:
        return bool((index + 1) % interval)
    if metadata.architecture == "falcon-h1":
        return False
    return metadata.per_layer("attention.head_count_kv", num_layers, 1)[index] == 0


def _state(metadata: _Metadata) -> tuple[TensorSpec, ...]:
    """llama.cpp keeps both parts in fp32."""
    inner, state = metadata.count("ssm.inner_size"), metadata.count("ssm.state_size")
    channels = inner + 2 * metadata.natural("ssm.group_count") * state
    kernel = metadata.natural("ssm.conv_kernel", 4)
    return (
        TensorSpec("conv", "float32", (kernel - 1, channels)),
        TensorSpec("state", "float32", (inner, state)),
    )
