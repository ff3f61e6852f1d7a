"""Tiny random models written as GGUF files, the way llama.cpp's converter writes them."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 256, 512, 2, 8, 2, 32, 300
CONTEXT = 512

_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_weights(architecture: str, *, tied: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    """Random fp32 weights under their Hugging Face names."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, shape in _layer_shapes(architecture).items():
            shapes[f"{prefix}.{name}"] = shape
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _layer_shapes(architecture: str) -> dict[str, tuple[int, ...]]:
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (queries, HIDDEN),
        "self_attn.k_proj.weight": (keys, HIDDEN),
        "self_attn.v_proj.weight": (keys, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, queries),
        "post_attention_layernorm.weight": (HIDDEN,),
        "mlp.gate_proj.weight": (INNER, HIDDEN),
        "mlp.up_proj.weight": (INNER, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INNER),
    }
    if architecture == "qwen2":
        sizes = {"q": queries, "k": keys, "v": keys}
        shapes |= {f"self_attn.{name}_proj.bias": (size,) for name, size in sizes.items()}
    if architecture == "qwen3":
        shapes |= {f"self_attn.{name}_norm.weight": (HEAD_DIM,) for name in "qk"}
    return shapes


def permute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """What the converter does to q and k of llama-type models: interleave the two rotary halves of each head."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def gguf_name(name: str) -> str:
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    top["lm_head.weight"] = "output.weight"
    if name in top:
        return top[name]
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_GGUF_NAMES[module]}.{kind}"


def byte_level_metadata() -> dict[str, Any]:
    """A byte-level vocabulary: 256 bytes, a few merges, special tokens at the end."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in letters)}
    tokens = [letters[byte] for byte in range(256)]
    merges = ["h e", "l l", "he ll", "hell o", f"{letters[32]} w", f"{letters[32]}w o", "1 2", "12 3"]
    tokens += [merge.replace(" ", "") for merge in merges]
    num_plain = len(tokens)
    tokens += ["<|bos|>", "<|eos|>", "<tool>"]
    types = [1] * num_plain + [3, 3, 4]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": num_plain,
        "tokenizer.ggml.eos_token_id": num_plain + 1,
        "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
    }


def model_metadata(architecture: str) -> dict[str, Any]:
    return {
        f"{architecture}.{key}": value
        for key, value in {
            "context_length": CONTEXT,
            "embedding_length": HIDDEN,
            "block_count": LAYERS,
            "feed_forward_length": INNER,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 10000.0,
            "rope.dimension_count": HEAD_DIM,
        }.items()
    }


def write_gguf(
    file: Path,
    architecture: str,
    weights: dict[str, np.ndarray],
    *,
    tensor_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: dict[str, Any] | None = None,
    extra_tensors: dict[str, np.ndarray] | None = None,
    extra_type: gguf.GGMLQuantizationType | None = None,
) -> Path:
    """Write ``weights`` (Hugging Face names) as ``file``: matrices in ``tensor_type``, vectors in F32.

    ``metadata`` overrides and extends; a value of None leaves the key out.
    ``extra_tensors`` have GGUF names and are written raw, as ``extra_type`` if given.
    """
    writer = gguf.GGUFWriter(file, architecture)
    values = byte_level_metadata() | model_metadata(architecture) | (metadata or {})
    for key, value in values.items():
        _add_value(writer, key, value)
    for name, weight in weights.items():
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            weight = permute(weight, HEADS if ".q_proj." in name else KV_HEADS)
        kind = tensor_type if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), quantize(weight, kind), raw_dtype=kind)
    for name, tensor in (extra_tensors or {}).items():
        writer.add_tensor(name, tensor, raw_dtype=extra_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if value is None:
        return
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        adders[type(value)](key, value)
