"""Metadata of GGUF files as Hugging Face configs, and the one-sentence refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gguf_files import CONTEXT, HEAD_DIM, HIDDEN, INNER, VOCAB, byte_level_metadata, tiny_weights, write_gguf
from kvasir.core.errors import ModelError
from kvasir.models.gguf import convert_gguf


def config_of(tmp_path: Path, architecture: str, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    file = write_gguf(tmp_path / "m.gguf", architecture, tiny_weights(architecture), metadata=metadata)
    (tmp_path / "m").mkdir()
    convert_gguf(file, tmp_path / "m")
    return json.loads((tmp_path / "m" / "config.json").read_text())


@pytest.mark.parametrize(
    ("architecture", "hf_class"),
    [("llama", "LlamaForCausalLM"), ("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")],
)
def test_the_config_says_what_the_file_says(tmp_path: Path, architecture: str, hf_class: str) -> None:
    config = config_of(tmp_path, architecture)
    expected = {
        "architectures": [hf_class],
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "bos_token_id": 264,
        "eos_token_id": 265,
    }
    assert {key: config[key] for key in expected} == expected


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_transformers_loads_the_folder_whole(tmp_path: Path, architecture: str) -> None:
    config_of(tmp_path, architecture)
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "m", output_loading_info=True, dtype=torch.float32)
    model, report = loaded
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert type(model).__name__.lower().startswith(architecture)


def test_a_sliding_window_makes_a_llama_file_mistral(tmp_path: Path) -> None:
    config = config_of(tmp_path, "llama", {"llama.attention.sliding_window": 128})
    assert config["architectures"] == ["MistralForCausalLM"]
    assert config["sliding_window"] == 128


def test_every_end_of_turn_ends_an_answer(tmp_path: Path) -> None:
    """eos, eot and the control token with which the chat template ends a turn; not one the template never writes."""
    words = byte_level_metadata()
    first = len(words["tokenizer.ggml.tokens"])
    metadata = {
        "tokenizer.ggml.tokens": [*words["tokenizer.ggml.tokens"], "<|eot|>", "<|im_end|>", "<|eom_id|>"],
        "tokenizer.ggml.token_type": [*words["tokenizer.ggml.token_type"], 3, 3, 3],
        "tokenizer.ggml.eot_token_id": first,
        "tokenizer.chat_template": "{{ messages[0].content }}<|im_end|>",
    }
    config = config_of(tmp_path, "llama", metadata)
    assert config["eos_token_id"] == [265, first, first + 1]
    generation = json.loads((tmp_path / "m" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [265, first, first + 1]


@pytest.mark.parametrize(
    ("architecture", "metadata", "sentence"),
    [
        ("mamba", {}, "architecture 'mamba' is not served"),
        ("llama", {"llama.expert_count": 8}, "mixture of experts"),
        ("llama", {"llama.block_count": None}, "above 0 as llama.block_count, but has None"),
        ("llama", {"llama.rope.dimension_count": 16}, "rotary part of 16"),
        ("llama", {"llama.attention.key_length": 32, "llama.attention.value_length": 64}, "values of 64"),
        ("llama", {"llama.attention.head_count": [8, 4]}, "needs one whole number"),
        ("llama", {"llama.attention.head_count": 0}, "above 0 as llama.attention.head_count, but has 0"),
        ("llama", {"llama.attention.head_count_kv": [2, 1]}, "above 0 as llama.attention.head_count_kv"),
        ("llama", {"llama.attention.head_count_kv": 3}, "8 query heads, which 3 KV heads cannot share"),
        ("llama", {"llama.block_count": 1 << 31}, "claims 2147483648 layers"),
        ("qwen2", {"qwen2.attention.sliding_window": 128}, "does not say for which layers"),
        ("llama", {"tokenizer.ggml.model": "rwkv"}, "vocabulary 'rwkv' is not served"),
        ("llama", {"tokenizer.ggml.pre": "martian"}, "pre-tokenizer 'martian' is not known"),
        ("llama", {"tokenizer.ggml.tokens": ["a"] * (VOCAB + 1)}, "must fit"),
        ("llama", {"tokenizer.ggml.token_type": [1, 2]}, "2 token types"),
        ("llama", {"tokenizer.ggml.merges": ["a nowhere"]}, "no usable merges"),
        ("llama", {"tokenizer.ggml.model": "llama"}, "0 scores"),
    ],
)
def test_refusals_are_one_sentence(tmp_path: Path, architecture: str, metadata: dict[str, Any], sentence: str) -> None:
    weights = {"model.embed_tokens.weight": np.zeros((VOCAB, HIDDEN), dtype=np.float32)}
    weights |= tiny_weights("llama") if architecture == "llama" else {}
    file = write_gguf(tmp_path / "m.gguf", architecture, weights, metadata=metadata)
    with pytest.raises(ModelError, match=sentence):
        convert_gguf(file, tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))
