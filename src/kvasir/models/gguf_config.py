"""GGUF metadata as the dict of a Hugging Face config.json."""

from dataclasses import dataclass
from typing import Any

from kvasir.core.errors import ModelError
from kvasir.models.gguf_rope import rope_scaling

_HF_CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_HF_CLASSES |= {"qwen3": "Qwen3ForCausalLM"}
ARCHITECTURES = ("llama", "qwen2", "qwen3")
_DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class GgufMetadata:
    """The key-value part of a GGUF file.  ``architecture_value`` looks a key up under the architecture's prefix."""

    values: dict[str, Any]

    @classmethod
    def from_reader(cls, reader: Any) -> "GgufMetadata":
        try:
            return cls({name: _contents(field) for name, field in reader.fields.items()})
        except (ValueError, IndexError, TypeError) as error:
            raise ModelError(f"The metadata of the GGUF file cannot be read ({error}).") from error

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def of_architecture(self, key: str, default: Any = None) -> Any:
        return self.values.get(f"{self.architecture}.{key}", default)

    def needed(self, key: str) -> int:
        """A count every file of the architecture has; ``ModelError`` naming it when absent, zero or per layer."""
        name = f"{self.architecture}.{key}"
        value = self.values.get(name)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"The GGUF file needs one whole number above 0 as {name}, but has {value!r}.")
        return value


def build_config(metadata: GgufMetadata, shapes: dict[str, tuple[int, ...]], rope_freqs: Any | None) -> dict[str, Any]:
    """The config.json of the file.  ``shapes`` are row-major shapes by GGUF name; ``rope_freqs`` the factors tensor.

    Raises ``ModelError`` for an unknown architecture and for features no Hugging Face config of it can express.
    """
    _refuse_unserved(metadata)
    num_heads = metadata.needed("attention.head_count")
    hidden_size = metadata.needed("embedding_length")
    head_dim = int(metadata.of_architecture("attention.key_length", hidden_size // num_heads))
    _check_head_dim(metadata, head_dim)
    if "token_embd.weight" not in shapes:
        raise ModelError("The GGUF file lacks the weight token_embd.weight, so it is no whole language model.")
    theta = float32_value(metadata.of_architecture("rope.freq_base", _DEFAULT_THETA))
    context = metadata.needed("context_length")
    sliding_window = metadata.of_architecture("attention.sliding_window")
    model_type = metadata.architecture
    if model_type == "llama" and sliding_window:
        model_type = "mistral"
    config: dict[str, Any] = {
        "architectures": [_HF_CLASSES[model_type]],
        "model_type": model_type,
        "vocab_size": shapes["token_embd.weight"][0],
        "hidden_size": hidden_size,
        "intermediate_size": metadata.needed("feed_forward_length"),
        "num_hidden_layers": _num_layers(metadata, shapes),
        "num_attention_heads": num_heads,
        "num_key_value_heads": _num_kv_heads(metadata, num_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": float32_value(metadata.of_architecture("attention.layer_norm_rms_epsilon", 1e-5)),
        "max_position_embeddings": context,
        "rope_theta": theta,
        "rope_scaling": rope_scaling(metadata.of_architecture, context, theta, head_dim, rope_freqs),
        "tie_word_embeddings": "output.weight" not in shapes,
        "torch_dtype": "float32",
    }
    return config | _variant(model_type, shapes, sliding_window)


def build_generation_config(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if config.get(key) is not None}


def float32_value(value: float) -> float:
    """The shortest decimal that is the same 32-bit float: 9.999999747378752e-06 is written 1e-05 again."""
    import numpy as np

    return float(str(np.float32(value)))


def _variant(model_type: str, shapes: dict[str, tuple[int, ...]], sliding_window: int | None) -> dict[str, Any]:
    """The switches that only some families have."""
    if model_type == "mistral":
        return {"sliding_window": int(sliding_window or 0)}
    if model_type == "qwen2":
        return {"use_sliding_window": False}
    biased = {name.split(".", 2)[2] for name in shapes if name.startswith("blk.") and name.endswith(".bias")}
    variant: dict[str, Any] = {
        "attention_bias": bool(biased & {"attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias"})
    }
    if model_type == "qwen3":
        return variant | {"use_sliding_window": False}
    return variant | {"mlp_bias": bool(biased & {"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"})}


def _refuse_unserved(metadata: GgufMetadata) -> None:
    if metadata.architecture not in ARCHITECTURES:
        raise ModelError(
            f"GGUF architecture {metadata.architecture!r} is not served; served are {', '.join(ARCHITECTURES)}."
        )
    if metadata.of_architecture("expert_count"):
        raise ModelError("The GGUF file is a mixture of experts, which is not served.")
    if metadata.architecture != "llama" and metadata.of_architecture("attention.sliding_window"):
        raise ModelError(
            f"The GGUF file has a sliding window in architecture {metadata.architecture}, "
            "but does not say for which layers; use the Hugging Face folder of the model."
        )


def _num_kv_heads(metadata: GgufMetadata, num_heads: int) -> int:
    if metadata.of_architecture("attention.head_count_kv") is None:
        return num_heads
    num_kv_heads = metadata.needed("attention.head_count_kv")
    if num_heads % num_kv_heads:
        raise ModelError(f"The GGUF file has {num_heads} query heads, which {num_kv_heads} KV heads cannot share.")
    return num_kv_heads


def _num_layers(metadata: GgufMetadata, shapes: dict[str, tuple[int, ...]]) -> int:
    num_layers = metadata.needed("block_count")
    if num_layers > len(shapes):
        raise ModelError(f"The GGUF file claims {num_layers} layers, but has only {len(shapes)} weights.")
    return num_layers


def _check_head_dim(metadata: GgufMetadata, head_dim: int) -> None:
    value_dim = metadata.of_architecture("attention.value_length", head_dim)
    rotary_dim = metadata.of_architecture("rope.dimension_count", head_dim)
    if value_dim != head_dim or rotary_dim != head_dim:
        raise ModelError(
            f"Keys of {head_dim} dimensions with values of {value_dim} and a rotary part of {rotary_dim} "
            "are not served; all three must be equal."
        )


def _contents(field: Any) -> Any:
    return field.contents()
