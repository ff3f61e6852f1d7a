"""``ModelConfig``: a model's shape in our words.  The only way in for configs that others wrote."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kvasir.core.errors import ModelError
from kvasir.kv.layout import KVGeometry
from kvasir.models.foreign import ForeignConfig
from kvasir.models.registry import Architecture, find_architecture
from kvasir.models.rope_config import RopeConfig, RopeKind, read_rope

__all__ = ["ModelConfig", "RopeConfig", "RopeKind", "load_config"]

_DEFAULT_RMS_NORM_EPS = 1e-6
"""What a config without rms_norm_eps means, in all served families."""

# Entries that change the arithmetic, with the values that change nothing.
_NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "attention_multiplier": (),
    "embedding_multiplier": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "residual_multiplier": (1, 1.0),
    "rope_interleaved": (False,),
    "num_local_experts": (0, 1),
    "num_experts": (0, 1),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of one model, all families in the same fields.

    ``sliding_windows`` is per layer, in tokens, None for full attention.  ``max_position_embeddings`` is the context
    the model serves by itself; ``max_context`` what its RoPE scaling was made for, at most.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_qk_norm: bool
    has_mlp_bias: bool
    sliding_windows: tuple[int | None, ...]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    torch_dtype: str

    @property
    def geometry(self) -> KVGeometry:
        return KVGeometry(
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            sliding_windows=self.sliding_windows,
        )

    @property
    def max_context(self) -> int:
        return self.rope.max_context(self.max_position_embeddings)

    @classmethod
    def from_hf(cls, values: dict[str, Any]) -> Self:
        """Translate a parsed Hugging Face ``config.json``.

        Raises ``ModelError``, one sentence that names the value and what is served, for whatever would make our logits
        differ from the model's: nothing that changes the arithmetic is passed over.  An absent entry takes the value
        its absence means in transformers; entries whose absence has no clear meaning are required.
        """
        config = ForeignConfig(values)
        architecture = find_architecture(config.get("model_type"))
        _refuse_unserved(config, architecture)
        traits = architecture.load_reader()(config)
        num_heads = config.count("num_attention_heads")
        num_kv_heads = config.count("num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            raise ModelError(
                f"{config.label} has {num_heads} attention heads, which {num_kv_heads} key/value heads cannot share "
                "evenly."
            )
        max_position_embeddings = config.count("max_position_embeddings")
        bos = config.token_ids("bos_token_id")
        return cls(
            architecture=architecture.name,
            vocab_size=config.count("vocab_size"),
            hidden_size=config.count("hidden_size"),
            intermediate_size=config.count("intermediate_size"),
            num_layers=config.count("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=_head_dim(config, num_heads, traits.default_head_dim),
            rms_norm_eps=config.number("rms_norm_eps", _DEFAULT_RMS_NORM_EPS),
            rope=read_rope(config, max_position_embeddings),
            max_position_embeddings=max_position_embeddings,
            tie_word_embeddings=config.flag("tie_word_embeddings", False),
            has_qkv_bias=traits.has_qkv_bias,
            has_output_bias=traits.has_output_bias,
            has_qk_norm=traits.has_qk_norm,
            has_mlp_bias=traits.has_mlp_bias,
            sliding_windows=traits.sliding_windows,
            bos_token_id=bos[0] if bos else None,
            eos_token_ids=config.token_ids("eos_token_id"),
            torch_dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
        )


def load_config(folder: Path) -> ModelConfig:
    """The config of a folder in Hugging Face layout.

    End-of-sequence ids of ``generation_config.json`` are added to those of ``config.json``: instruction models name
    their end of turn only there.  Raises ``ModelError``.
    """
    values = _read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    if generation.is_file():
        extra = ForeignConfig(_read_json(generation), generation.name).token_ids("eos_token_id")
        own = ForeignConfig(values).token_ids("eos_token_id")
        values = values | {"eos_token_id": list(dict.fromkeys(own + extra))}
    return ModelConfig.from_hf(values)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"The folder {file.parent} has no {file.name}.") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read as JSON ({error}).") from error
    if not isinstance(values, dict):
        raise ModelError(f"{file} holds no JSON object.")
    return values


def _refuse_unserved(config: ForeignConfig, architecture: Architecture) -> None:
    classes = config.get("architectures")
    if classes is not None and architecture.causal_class not in classes:
        raise ModelError(
            f"{config.label} describes {classes!r}; of the architecture {architecture.name} only "
            f"{architecture.causal_class} is served."
        )
    quantisation = config.get("quantization_config")
    if quantisation is not None:
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation
        raise ModelError(
            f"The weights are quantised with {method!r}, which is not read; use the model's 16-bit or 32-bit weights, "
            "or a GGUF file."
        )
    for name, neutral in _NEUTRAL_VALUES.items():
        value = config.get(name)
        if value is not None and value not in neutral:
            served = ", ".join(map(repr, neutral)) or "null"
            raise ModelError(f"{config.label} has {name} = {value!r}; served is only {served}.")


def _head_dim(config: ForeignConfig, num_heads: int, default: int | None) -> int:
    hidden_size = config.count("hidden_size")
    if config.get("head_dim") is None and default is None and hidden_size % num_heads:
        raise ModelError(
            f"{config.label} has no head_dim, and hidden_size {hidden_size} is not a multiple of {num_heads} heads."
        )
    head_dim = config.count("head_dim", default or hidden_size // num_heads)
    if head_dim % 2:
        raise ModelError(f"{config.label} has head_dim = {head_dim}; RoPE needs an even number.")
    return head_dim
