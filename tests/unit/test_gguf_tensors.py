"""Every tensor of a model written as GGUF comes back, to the bit of what its type can hold."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from safetensors import safe_open
from safetensors.torch import load_file

from gguf_files import HEADS, HIDDEN, KV_HEADS, byte_level_metadata, model_metadata, tiny_weights, write_gguf
from kvasir.core.errors import ModelError
from kvasir.models.gguf import convert_gguf
from kvasir.models.gguf_tensors import undo_row_permutation

Type = gguf.GGMLQuantizationType
WRITABLE = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]


def converted(file: Path, folder: Path) -> dict[str, np.ndarray]:
    folder.mkdir()
    convert_gguf(file, folder)
    return {name: tensor.float().numpy() for name, tensor in load_file(folder / "model.safetensors").items()}


def held_by(tensor_type: Type, weight: np.ndarray) -> np.ndarray:
    """The values that a matrix of ``tensor_type`` keeps; quantised rows know nothing of each other."""
    if weight.ndim == 1:
        return weight
    return dequantize(quantize(weight, tensor_type), tensor_type)


@pytest.mark.parametrize("tensor_type", WRITABLE, ids=lambda kind: kind.name)
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_every_tensor_comes_back(tmp_path: Path, architecture: str, tensor_type: Type) -> None:
    weights = tiny_weights(architecture)
    file = write_gguf(tmp_path / "m.gguf", architecture, weights, tensor_type=tensor_type)
    read = converted(file, tmp_path / "m")
    assert read.keys() == weights.keys()
    for name, weight in weights.items():
        np.testing.assert_array_equal(read[name], held_by(tensor_type, weight), err_msg=name)


@pytest.mark.parametrize(("tensor_type", "dtype"), [(Type.F16, "F16"), (Type.BF16, "BF16"), (Type.Q8_0, "F32")])
def test_half_precision_is_kept_as_it_is(tmp_path: Path, tensor_type: Type, dtype: str) -> None:
    file = write_gguf(tmp_path / "m.gguf", "llama", tiny_weights("llama"), tensor_type=tensor_type)
    converted(file, tmp_path / "m")
    with safe_open(tmp_path / "m" / "model.safetensors", framework="pt") as tensors:
        assert tensors.get_slice("lm_head.weight").get_dtype() == dtype
        assert tensors.get_slice("model.norm.weight").get_dtype() == "F32"


def test_a_file_without_output_weight_is_tied(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", "qwen2", tiny_weights("qwen2", tied=True))
    assert "lm_head.weight" not in converted(file, tmp_path / "m")


@pytest.mark.parametrize("num_heads", [1, 2, 8])
def test_the_permutation_of_a_head_is_rotary_pairs(num_heads: int) -> None:
    """GGUF row 2i + half of a head is Hugging Face row half * d/2 + i; said here without reshape."""
    rows, head_dim = 64, 64 // num_heads
    stored = np.arange(rows)
    expected = np.empty(rows, dtype=int)
    for head in range(num_heads):
        for half in range(2):
            for i in range(head_dim // 2):
                expected[head * head_dim + half * head_dim // 2 + i] = stored[head * head_dim + 2 * i + half]
    np.testing.assert_array_equal(undo_row_permutation(stored, num_heads), expected)


def q4_k_values(block: bytes) -> list[float]:
    """One 144-byte block of Q4_K read scalar by scalar: 8 groups of 32 values, 6-bit scales and minima."""
    d, dmin = np.frombuffer(block[:4], dtype=np.float16).astype(np.float32)
    packed, codes = block[4:16], block[16:144]
    values: list[float] = []
    for group in range(8):
        if group < 4:
            scale, minimum = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = (packed[group + 4] & 0xF) | ((packed[group - 4] >> 6) << 4)
            minimum = (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4)
        half = codes[group // 2 * 32 : group // 2 * 32 + 32]
        nibbles = [(byte >> 4 if group % 2 else byte & 0xF) for byte in half]
        values += [float(np.float32(d * scale) * np.float32(code) - np.float32(dmin * minimum)) for code in nibbles]
    return values


def q6_k_values(block: bytes) -> list[float]:
    """One 210-byte block of Q6_K: 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, one fp16."""
    low, high = block[:128], block[128:192]
    scales = np.frombuffer(block[192:208], dtype=np.int8)
    d = np.frombuffer(block[208:210], dtype=np.float16).astype(np.float32)[0]
    values: list[float] = []
    for index in range(256):
        half, within = divmod(index, 128)
        quarter, lane = divmod(within, 32)
        byte = low[half * 64 + (quarter % 2) * 32 + lane]
        nibble = byte >> 4 if quarter >= 2 else byte & 0xF
        pair = (high[half * 32 + lane] >> (2 * quarter)) & 3
        values.append(float(np.float32(d * np.float32(scales[index // 16])) * np.float32((nibble | (pair << 4)) - 32)))
    return values


@pytest.mark.parametrize(("tensor_type", "reference"), [(Type.Q4_K, q4_k_values), (Type.Q6_K, q6_k_values)])
def test_k_quants_are_read(tmp_path: Path, tensor_type: Type, reference: Callable[[bytes], list[float]]) -> None:
    block_bytes = gguf.GGML_QUANT_SIZES[tensor_type][1]
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, (HIDDEN, block_bytes), dtype=np.uint8)  # one block a row of 256
    halves = (0, 2) if tensor_type is Type.Q4_K else (208,)
    for at in halves:
        scale = rng.uniform(0.001, 0.1, HIDDEN).astype(np.float16)
        raw[:, at : at + 2] = scale.view(np.uint8).reshape(HIDDEN, 2)
    weights = tiny_weights("qwen2")
    name = "model.layers.0.self_attn.o_proj.weight"
    del weights[name]
    extra = {"blk.0.attn_output.weight": raw}
    file = write_gguf(tmp_path / "m.gguf", "qwen2", weights, extra_tensors=extra, extra_type=tensor_type)
    expected = np.array([reference(row.tobytes()) for row in raw], dtype=np.float32)
    np.testing.assert_allclose(converted(file, tmp_path / "m")[name], expected, rtol=1e-6)


def test_a_llama_bias_group_is_completed_with_zeros(tmp_path: Path) -> None:
    """Hugging Face has one switch for the q, k, v and o biases; a file may carry three of them."""
    weights = tiny_weights("llama")
    biases = {
        f"model.layers.{layer}.self_attn.{name}_proj.bias": np.arange(rows, dtype=np.float32)
        for layer in range(2)
        for name, rows in (("q", HIDDEN), ("k", HIDDEN * KV_HEADS // HEADS), ("v", HIDDEN * KV_HEADS // HEADS))
    }
    read = converted(write_gguf(tmp_path / "m.gguf", "llama", weights | biases), tmp_path / "m")
    for name, bias in biases.items():
        np.testing.assert_array_equal(read[name], bias, err_msg=name)
    np.testing.assert_array_equal(read["model.layers.1.self_attn.o_proj.bias"], np.zeros(HIDDEN, dtype=np.float32))


def test_refusals_name_the_weight(tmp_path: Path) -> None:
    weights = tiny_weights("llama")
    missing = {name: weight for name, weight in weights.items() if name != "model.layers.1.mlp.up_proj.weight"}
    extra = {"blk.0.attn_q_norm.weight": np.ones(32, dtype=np.float32)}
    cases = {
        "lacks the weight blk.1.ffn_up.weight": write_gguf(tmp_path / "a.gguf", "llama", missing),
        "does not have, blk.0.attn_q_norm.weight": write_gguf(
            tmp_path / "b.gguf", "llama", weights, extra_tensors=extra
        ),
        "has shape": write_gguf(
            tmp_path / "c.gguf", "llama", weights, metadata={"llama.feed_forward_length": HIDDEN * 3}
        ),
        "type I32": write_gguf(
            tmp_path / "d.gguf",
            "llama",
            {name: weight for name, weight in weights.items() if name != "model.norm.weight"},
            extra_tensors={"output_norm.weight": np.ones(HIDDEN, dtype=np.int32)},
        ),
    }
    for sentence, file in cases.items():
        (tmp_path / file.stem).mkdir()
        with pytest.raises(ModelError, match=sentence):
            convert_gguf(file, tmp_path / file.stem)


@pytest.mark.parametrize("kept", [0, 3, 20, 2000, -1000])
def test_a_cut_or_foreign_file_is_refused(tmp_path: Path, kept: int) -> None:
    whole = write_gguf(tmp_path / "m.gguf", "llama", tiny_weights("llama")).read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:kept])
    with pytest.raises(ModelError, match="not a readable GGUF file"):
        convert_gguf(tmp_path / "cut.gguf", tmp_path)


def test_the_helpers_describe_one_model() -> None:
    """The tiny vocabulary must fit the tiny embedding, else the tests above would test the refusal of it."""
    assert len(byte_level_metadata()["tokenizer.ggml.tokens"]) <= 300
    assert model_metadata("llama")["llama.embedding_length"] == HIDDEN
