"""Tiny random models of every family, made and saved with transformers' own classes."""

from pathlib import Path
from typing import Any

import torch
import transformers

CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}

BASE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NO_WINDOW: dict[str, dict[str, Any]] = {"mistral": {"sliding_window": None}}

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn-all": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 8.0,
        "beta_slow": 0.5,
        "mscale": 1.2,
        "mscale_all_dim": 0.7,
        "truncate": False,
    },
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
}
SHAPES: dict[str, dict[str, Any]] = {
    "mha-untied": {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "gqa-tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "mqa-wide": {"num_key_value_heads": 1, "head_dim": 32, "tie_word_embeddings": False},
}


def make_model(folder: Path, family: str, **entries: Any) -> Any:
    """Saves a model under ``folder`` and returns it.  Every parameter is random, norms and biases too, and large
    enough that attention is far from uniform: a wrong rotation or mask moves the logits by tenths."""
    config_class, model_class = CLASSES[family]
    config = config_class(**(BASE | NO_WINDOW.get(family, {}) | entries), attn_implementation="eager")
    model = model_class(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = parameter.dim() == 1 and bool((parameter == 1).all())
        scale = 1.3 * parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 0.3
        parameter.copy_(1.0 + 0.3 * noise if is_norm else scale * noise)
    model.save_pretrained(folder)
    return model


def random_tokens(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, BASE["vocab_size"], (length,), generator=generator).tolist()
