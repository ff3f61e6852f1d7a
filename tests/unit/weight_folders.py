"""Model folders written by hand: a config and random weights of exactly the shapes it asks for."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from kvasir.models.config import ModelConfig
from kvasir.models.parameters import parameter_shapes

TINY: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def random_weights(entries: dict[str, Any], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = parameter_shapes(ModelConfig.from_hf(entries))
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def write_folder(folder: Path, entries: dict[str, Any], weights: dict[str, Tensor]) -> ModelConfig:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(entries))
    save_file(weights, folder / "model.safetensors")
    return ModelConfig.from_hf(entries)
