"""GGUF tensors under their Hugging Face names: names, the q/k row permutation, dequantisation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from kvasir.core.errors import ModelError
from kvasir.models.safetensors_writer import ITEM_BYTES

if TYPE_CHECKING:
    import numpy as np

_BLOCK_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_QK_NORM_NAMES = {"attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight"}
_QKV_BIAS_NAMES = {
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
}
_OUTPUT_BIAS_NAMES = {"attn_output.bias": "self_attn.o_proj.bias"}
_MLP_BIAS_NAMES = {
    "ffn_gate.bias": "mlp.gate_proj.bias",
    "ffn_up.bias": "mlp.up_proj.bias",
    "ffn_down.bias": "mlp.down_proj.bias",
}
_TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_EXPRESSED_IN_CONFIG = frozenset({"rope_freqs.weight"})

READABLE_TYPES = frozenset(
    {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}
)
_KEPT_TYPES = {"F16": "F16", "BF16": "BF16"}
"""Stored as they are; every other type becomes F32, which holds its dequantised values to the bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of the converted folder: ``load`` dequantises it (array of ``shape`` in ``dtype``, BF16 as uint16)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], "np.ndarray"]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def plan_tensors(config: dict[str, Any], tensors: dict[str, Any]) -> list[StoredTensor]:
    """What to write for a model with this HF ``config``, given the file's tensors by GGUF name.

    Raises ``ModelError`` naming the first tensor that is missing, unknown, of a wrong shape or of an unreadable type.
    """
    wanted = dict(_wanted(config))
    if unknown := sorted(tensors.keys() - wanted.keys() - _EXPRESSED_IN_CONFIG):
        raise ModelError(
            f"The GGUF file has {len(unknown)} weights that a {config['model_type']} model does not have, "
            f"{unknown[0]} first; such a variant is not served."
        )
    return [_plan_one(config, tensors.get(name), name, target) for name, target in wanted.items()]


def undo_row_permutation(weight: "np.ndarray", num_heads: int) -> "np.ndarray":
    """Rows of a llama-type q or k projection (weight or bias) back in the half-split order of Hugging Face.

    The converter of llama.cpp interleaves the two rotary halves of each head: HF row ``half * d/2 + i`` of a head of
    size ``d`` is GGUF row ``2 * i + half``.
    """
    rows = weight.shape[0]
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _wanted(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _TOP_NAMES.items()
    if not config["tie_word_embeddings"]:
        yield "output.weight", "lm_head.weight"
    names = dict(_BLOCK_NAMES)
    if config["model_type"] == "qwen3":
        names |= _QK_NORM_NAMES
    if config["model_type"] == "qwen2" or config.get("attention_bias"):
        names |= _QKV_BIAS_NAMES
    if config.get("attention_bias"):
        names |= _OUTPUT_BIAS_NAMES
    if config.get("mlp_bias"):
        names |= _MLP_BIAS_NAMES
    for layer in range(config["num_hidden_layers"]):
        for source, target in names.items():
            yield f"blk.{layer}.{source}", f"model.layers.{layer}.{target}"


def _plan_one(config: dict[str, Any], tensor: Any | None, name: str, target: str) -> StoredTensor:
    shape = _expected_shape(config, target)
    if tensor is None:
        if target.endswith(".bias") and config["model_type"] != "qwen2":
            # Hugging Face has one switch for a whole group of biases, GGUF one tensor each: an absent one is zero.
            return StoredTensor(name=target, dtype="F32", shape=shape, load=lambda: _zeros(shape))
        raise ModelError(f"The GGUF file lacks the weight {name}, which a {config['model_type']} model needs.")
    found = tuple(int(d) for d in reversed(tensor.shape))
    if found != shape:
        raise ModelError(f"The weight {name} has shape {found}, but the file's metadata says {shape}.")
    type_name = tensor.tensor_type.name
    if type_name not in READABLE_TYPES:
        raise ModelError(
            f"The weight {name} has the GGUF type {type_name}, which is not read; "
            f"use a file with {', '.join(sorted(READABLE_TYPES))}."
        )
    dtype = _KEPT_TYPES.get(type_name, "F32")
    num_heads = _permuted_heads(config, target)
    return StoredTensor(name=target, dtype=dtype, shape=shape, load=lambda: _load(tensor, dtype, shape, num_heads))


def _load(tensor: Any, dtype: str, shape: tuple[int, ...], num_heads: int | None) -> "np.ndarray":
    import numpy as np

    if dtype == "BF16":
        values = tensor.data.view(np.uint16)
    elif dtype == "F16":
        values = tensor.data.view(np.float16)
    else:
        from gguf.quants import dequantize

        values = dequantize(tensor.data, tensor.tensor_type)
    values = values.reshape(shape)
    if num_heads is not None:
        values = undo_row_permutation(values, num_heads)
    return np.ascontiguousarray(values)


def _zeros(shape: tuple[int, ...]) -> "np.ndarray":
    import numpy as np

    return np.zeros(shape, dtype=np.float32)


def _permuted_heads(config: dict[str, Any], target: str) -> int | None:
    """Only files of the llama architecture (Mistral models included) are written with permuted q and k."""
    if config["model_type"] not in ("llama", "mistral"):
        return None
    if ".q_proj." in target:
        return config["num_attention_heads"]
    if ".k_proj." in target:
        return config["num_key_value_heads"]
    return None


def _expected_shape(config: dict[str, Any], target: str) -> tuple[int, ...]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    module, kind = target.split(".")[-2:]
    matrices = {
        "embed_tokens": (config["vocab_size"], hidden),
        "lm_head": (config["vocab_size"], hidden),
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
        "q_norm": (config["head_dim"],),
        "k_norm": (config["head_dim"],),
    }
    shape = matrices.get(module, (hidden,))
    return shape[:1] if kind == "bias" else shape
