"""The fields of a config.json under the many names families give them; text models inside multimodal ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvasir.core.errors import ModelError
from kvasir.models.foreign import ForeignConfig

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")

_SYNONYMS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "inner_dim"),
    "context": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx", "max_sequence_length"),
    "vocab_size": ("padded_vocab_size", "vocab_size"),
    "head_dim": ("head_dim", "kv_channels", "d_kv"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k", "moe_top_k"),
}


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """The text model's part of ``root``; names above stand for all their synonyms."""

    root: ForeignConfig
    text: ForeignConfig

    @classmethod
    def of(cls, root: ForeignConfig) -> "ConfigFields":
        text = root
        for _ in range(2):
            inner = next((part for name in _TEXT_PARTS if (part := text.part(name)) is not None), None)
            if inner is None:
                break
            text = inner
        return cls(root, text)

    @property
    def model_type(self) -> str:
        """Of the text model; a nested one may leave it out."""
        found = self.text.get("model_type") or self.root.get("model_type")
        if not isinstance(found, str):
            raise ModelError(f"{self.root.label} has no model_type, so the architecture cannot be told.")
        return found.removesuffix("_text")

    @property
    def is_multimodal(self) -> bool:
        return self.text is not self.root

    def name_of(self, field: str) -> str | None:
        """The name under which ``field`` is present."""
        return next((name for name in _SYNONYMS[field] if self.text.get(name) is not None), None)

    def count(self, field: str, default: int | None = None) -> int:
        return self.text.count(self.name_of(field) or _SYNONYMS[field][0], default)

    def natural(self, name: str, default: int = 0) -> int:
        """A whole number, 0 allowed."""
        value = self.text.get(name)
        if value is None:
            return default
        return 0 if value == 0 else self.text.count(name)

    def flag(self, name: str, default: bool = False) -> bool:
        return self.text.flag(name, default)

    def sequence(self, name: str) -> Sequence[Any] | None:
        """A list or string under ``name``, or None."""
        value = self.text.get(name)
        if value is not None and not isinstance(value, list | str):
            raise ModelError(f"{self.text.label} has {name} = {value!r}; it must be a list.")
        return value

    def get(self, name: str) -> Any:
        return self.text.get(name)

    def is_tied(self, default: bool) -> bool:
        """A multimodal config may say it at either level."""
        if self.text.get("tie_word_embeddings") is None and self.is_multimodal:
            return self.root.flag("tie_word_embeddings", default)
        return self.text.flag("tie_word_embeddings", default)
