"""Real faults of reading GGUF files elsewhere, each kept out here."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gguf_files import HEAD_DIM, tiny_weights, write_gguf
from kvasir.models.gguf import convert_gguf
from kvasir.models.gguf_rope import llama3_divisors
from kvasir.models.resolve import resolve_model


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_G1_a_model_exported_to_gguf_comes_back(tmp_path: Path, architecture: str) -> None:
    """Every tensor, and with them the logits: q and k of llama files are permuted, of others they are not."""
    weights = tiny_weights(architecture)
    file = write_gguf(tmp_path / "m.gguf", architecture, weights)
    folder = resolve_model(str(file)).path
    read = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        np.testing.assert_array_equal(read[name].numpy(), weight, err_msg=name)

    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "config.json").write_text((folder / "config.json").read_text())
    tensors = {name: torch.from_numpy(weight).contiguous() for name, weight in weights.items()}
    save_file(tensors, exported / "model.safetensors", metadata={"format": "pt"})
    ids = torch.arange(40).reshape(1, 40)
    logits = [
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)(ids).logits for path in (exported, folder)
    ]
    assert torch.equal(logits[0], logits[1])


@pytest.mark.parametrize("layer", [0, 1])
def test_G1_k_is_undone_with_the_number_of_kv_heads(tmp_path: Path, layer: int) -> None:
    """With eight query heads and two KV heads, the wrong head count leaves k_proj scrambled."""
    weights = tiny_weights("llama", seed=3)
    convert_gguf(write_gguf(tmp_path / "m.gguf", "llama", weights), tmp_path)
    read = load_file(tmp_path / "model.safetensors")
    for projection in ("q_proj", "k_proj"):
        name = f"model.layers.{layer}.self_attn.{projection}.weight"
        np.testing.assert_array_equal(read[name].numpy(), weights[name])


def test_G1_rope_freqs_become_llama3_scaling(tmp_path: Path) -> None:
    """Llama 3.x files carry their scaling as a tensor of divisors, not as metadata."""
    divisors = llama3_divisors(500000.0, HEAD_DIM, 8.0, 8192, 1.0, 4.0)
    file = write_gguf(
        tmp_path / "m.gguf",
        "llama",
        tiny_weights("llama"),
        metadata={"llama.rope.freq_base": 500000.0, "llama.context_length": 131072},
        extra_tensors={"rope_freqs.weight": np.array(divisors, dtype=np.float32)},
    )
    folder = resolve_model(str(file)).path
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "rope_freqs.weight" not in load_file(folder / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    plain = 1.0 / 500000.0 ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, plain / torch.tensor(divisors))
