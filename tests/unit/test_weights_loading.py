"""Loading a folder: every dtype, what is refused, and that nothing of the file is kept."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from weight_folders import TINY, random_weights, write_folder

from kvasir.core.errors import ModelError
from kvasir.engine.config import WeightDtype
from kvasir.models.config import ModelConfig
from kvasir.models.cost import ModelCost
from kvasir.models.parameters import EMBEDDING, HEAD, layer_name
from kvasir.models.safetensors_folder import MappedWeights, read_weight_files
from kvasir.models.weights import load_weights

CONFIGS: dict[str, dict[str, Any]] = {
    "llama-tied": TINY,
    "llama-untied-biased": TINY | {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    "mistral": TINY | {"model_type": "mistral", "sliding_window": 16},
    "qwen2": TINY | {"model_type": "qwen2"},
    "qwen3": TINY | {"model_type": "qwen3", "tie_word_embeddings": False},
}


@pytest.mark.parametrize("weight_dtype", WeightDtype)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_bytes_are_what_the_cost_model_says(
    tmp_path: Path, name: str, stored: torch.dtype, weight_dtype: WeightDtype
) -> None:
    config = write_folder(tmp_path, CONFIGS[name], random_weights(CONFIGS[name], stored))
    weights = load_weights(tmp_path, config, weight_dtype)
    assert weights.num_bytes == ModelCost(config=config, weight_dtype=weight_dtype).weight_bytes
    assert len(weights.layers) == config.num_layers
    assert weights.final_norm.dtype is torch.float32
    assert weights.embedding.dtype.itemsize == (4 if weight_dtype is WeightDtype.FP32 else 2)


def test_nothing_of_the_file_is_kept(tmp_path: Path) -> None:
    source = random_weights(TINY)
    config = write_folder(tmp_path, TINY, source)
    weights = load_weights(tmp_path, config, WeightDtype.FP32)
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(file.stat().st_size))
    assert torch.equal(weights.embedding, source[EMBEDDING])
    assert torch.equal(weights.layers[1].mlp_norm, source[layer_name(1, "post_attention_layernorm.weight")])


def test_progress_rises_to_one(tmp_path: Path) -> None:
    config = write_folder(tmp_path, TINY, random_weights(TINY))
    seen: list[tuple[str, float]] = []
    load_weights(tmp_path, config, WeightDtype.INT8, lambda stage, fraction: seen.append((stage, fraction)))
    fractions = [fraction for _, fraction in seen]
    assert {stage for stage, _ in seen} == {"load weights"}
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1], len(set(fractions))) == (0.0, 1.0, 4)


def test_the_embedding_of_int8_models_keeps_large_values(tmp_path: Path) -> None:
    source = random_weights(TINY)
    source[EMBEDDING][3, 5] = 1e6
    config = write_folder(tmp_path, TINY, source)
    embedding = load_weights(tmp_path, config, WeightDtype.INT8).embedding
    assert embedding.dtype is torch.bfloat16
    assert embedding[3, 5].item() == pytest.approx(1e6, rel=0.01)


Q_PROJ = layer_name(1, "self_attn.q_proj.weight")


def changed(change: dict[str, Tensor | None]) -> dict[str, Tensor]:
    weights = random_weights(TINY) | change
    return {name: tensor for name, tensor in weights.items() if tensor is not None}


REFUSED: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "missing": ({Q_PROJ: None}, rf"lack {Q_PROJ} of shape \[24, 24\]\.$"),
    "two-missing": (
        {Q_PROJ: None, layer_name(1, "mlp.up_proj.weight"): None},
        r"lack .*q_proj.weight of shape \[24, 24\] \(and 1 more\)",
    ),
    "unknown": (
        {layer_name(0, "self_attn.q_proj.bias"): torch.zeros(24)},
        r"hold model.layers.0.self_attn.q_proj.bias of shape \[24\], which a llama model",
    ),
    "shape": ({Q_PROJ: torch.zeros(24, 16)}, rf"{Q_PROJ} has shape \[24, 16\], but config.json says \[24, 24\]"),
    "other-head": ({HEAD: torch.zeros(40, 24)}, r"ties the LM head .* another lm_head.weight of shape \[40, 24\]"),
    "head-shape": (
        {HEAD: torch.zeros(41, 24)},
        r"lm_head.weight has shape \[41, 24\], but config.json says \[40, 24\]",
    ),
    "dtype": ({Q_PROJ: torch.zeros(24, 24, dtype=torch.int8)}, r"q_proj.weight in model.safetensors has dtype I8"),
    "fp8": ({Q_PROJ: torch.zeros(24, 24).to(torch.float8_e4m3fn)}, "has dtype F8_E4M3, which is not read; use F32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(tmp_path: Path, name: str) -> None:
    change, sentence = REFUSED[name]
    config = write_folder(tmp_path, TINY, changed(change))
    with pytest.raises(ModelError, match=sentence):
        load_weights(tmp_path, config, WeightDtype.FP32)


def test_what_is_no_fault(tmp_path: Path) -> None:
    source = random_weights(TINY)
    extra = {
        HEAD: source[EMBEDDING].clone(),
        layer_name(0, "self_attn.rotary_emb.inv_freq"): torch.ones(4),
    }
    config = write_folder(tmp_path, TINY, source | extra)
    assert load_weights(tmp_path, config, WeightDtype.FP32).is_head_shared


def write_raw(path: Path, header: dict[str, Any] | bytes, num_bytes: int) -> None:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(num_bytes))


def entry(begin: int, end: int, shape: list[int]) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


DAMAGED: dict[str, tuple[dict[str, Any] | bytes, int, str]] = {
    "cut-short": ({"a": entry(0, 16, [4])}, 12, "its header describes .*: it is cut short or damaged"),
    "too-long": ({"a": entry(0, 16, [4])}, 20, "it is cut short or damaged"),
    "gap": ({"a": entry(0, 16, [4]), "b": entry(20, 24, [1])}, 24, "The weight b in .* starts at"),
    "overlap": ({"a": entry(0, 16, [4]), "b": entry(8, 16, [2])}, 16, "The weight b in .* starts at"),
    "size": ({"a": entry(0, 12, [4])}, 12, r"has 12 bytes, but F32 of shape \[4\] needs 16"),
    "negative": ({"a": entry(-4, 12, [4])}, 12, "has 16 bytes"),
    "no-json": (b"{not json", 4, "The header of .* cannot be read"),
    "no-entry": ({"a": 5}, 0, "The header of .* cannot be read"),
    "list": (b"[]", 0, "The header of .* cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(tmp_path: Path, name: str) -> None:
    header, num_bytes, sentence = DAMAGED[name]
    write_raw(tmp_path / "model.safetensors", header, num_bytes)
    with pytest.raises(ModelError, match=sentence):
        read_weight_files(tmp_path)


@pytest.mark.parametrize("content", [b"", b"abc", struct.pack("<Q", 1 << 40) + b"{}"], ids=["empty", "short", "huge"])
def test_files_that_are_no_safetensors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="is no safetensors file"):
        read_weight_files(tmp_path)


def test_which_files_are_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no \*\.safetensors file"):
        read_weight_files(tmp_path)
    save_file({"a": torch.ones(2)}, tmp_path / "only.safetensors")
    assert [file.path.name for file in read_weight_files(tmp_path)] == ["only.safetensors"]
    save_file({"b": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match=r"has 2 safetensors files but no model\.safetensors.index\.json"):
        read_weight_files(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "only.safetensors"}}))
    assert [file.path.name for file in read_weight_files(tmp_path)] == ["only.safetensors"]
    index.write_text(json.dumps({"weight_map": {"a": "only.safetensors", "c": "other.safetensors"}}))
    with pytest.raises(ModelError, match=r"lists the weight c, but other\.safetensors does not hold it"):
        read_weight_files(tmp_path)
    save_file({"a": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match=r"The weight a is in both only\.safetensors and other\.safetensors"):
        read_weight_files(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "lost.safetensors"}}))
    with pytest.raises(ModelError, match=r"lost\.safetensors cannot be read"):
        read_weight_files(tmp_path)
    index.write_text("{}")
    with pytest.raises(ModelError, match="is no index of weight files"):
        read_weight_files(tmp_path)


def test_tensors_at_odd_addresses(tmp_path: Path) -> None:
    values = torch.arange(6, dtype=torch.float32)
    header = json.dumps({"a": entry(0, 24, [2, 3])}).encode()
    header += b" " * ((-len(header)) % 4 + 1)  # the data starts one byte off
    raw = struct.pack("<Q", len(header)) + header + bytes(values.view(torch.uint8).tolist())
    (tmp_path / "model.safetensors").write_bytes(raw)
    mapped = MappedWeights(read_weight_files(tmp_path))
    assert torch.equal(mapped.view("a"), values.view(2, 3))
    mapped.release()
    assert torch.equal(mapped.view("a"), values.view(2, 3))


def test_int8_codes_do_not_depend_on_threads(tmp_path: Path) -> None:
    config = write_folder(tmp_path, TINY, random_weights(TINY))
    codes = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        codes.append(linear_codes(tmp_path, config))
    assert torch.equal(codes[0], codes[1])


def linear_codes(folder: Path, config: ModelConfig) -> Tensor:
    from kvasir.kernels.interface import Rows
    from kvasir.kernels.reference import ReferenceKernels
    from kvasir.models.linear import Scratch

    head = load_weights(folder, config, WeightDtype.INT8).head
    rows = Rows(torch.eye(head.in_features, dtype=torch.int8), torch.ones(head.in_features))
    return head(rows, Scratch(), ReferenceKernels()).data.clone()
