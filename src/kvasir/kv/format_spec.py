"""What one block of one KV head costs in each number format: the tensors, their shapes, their bytes.

This is the description only (no torch); ``formats/`` allocates and fills exactly these tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import prod

from kvasir.core.errors import ConfigError


class KVDtype(Enum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"
    INT4 = "int4"
    FP8 = "fp8"


SCALE_BYTES = 4
"""Of the fp32 scale that the integer formats keep per token and KV head."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a block of one head: ``shape`` is the tile, ``dtype`` a torch dtype's name."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


TileRule = Callable[[int, int], tuple[TensorSpec, ...]]
"""(head_dim, block_size) -> the tensors of one block of one head."""


def _dense(name: str, dtype: str, *, tokens_last: bool) -> TileRule:
    def rule(head_dim: int, block_size: int) -> tuple[TensorSpec, ...]:
        shape = (head_dim, block_size) if tokens_last else (block_size, head_dim)
        return (TensorSpec(name, dtype, shape),)

    return rule


def _int8(name: str, *, tokens_last: bool) -> TileRule:
    """Codes with one fp32 scale per token, in one tensor so that a tile is read in one sweep: codes first, then the
    scales.  ``formats/int8.py`` says how the codes are interleaved."""

    def rule(head_dim: int, block_size: int) -> tuple[TensorSpec, ...]:
        if head_dim % 4:
            raise ValueError(f"int8 tiles put four channels together, so a head size of {head_dim} does not fit")
        row = head_dim + SCALE_BYTES
        return (TensorSpec(name, "uint8", (row, block_size) if tokens_last else (block_size, row)),)

    return rule


def int4_group(head_dim: int) -> int:
    """Channels of a token that share one scale and one zero point.  Raises ``ValueError`` where neither size fits."""
    for group in (64, 32):
        if head_dim % group == 0:
            return group
    raise ValueError(f"int4 groups channels by 32, so a head size of {head_dim} does not fit")


def _int4(name: str, *, tokens_last: bool) -> TileRule:
    """Two codes a byte, then a bf16 scale and a bf16 zero point for each group of a token, all in one tensor;
    ``formats/int4.py`` says where what lies."""

    def rule(head_dim: int, block_size: int) -> tuple[TensorSpec, ...]:
        row = head_dim // 2 + 4 * (head_dim // int4_group(head_dim))
        return (TensorSpec(name, "uint8", (row, block_size) if tokens_last else (block_size, row)),)

    return rule


# K tiles are [head_dim, block_size] so that tokens are vector lanes in q.K; V tiles are [block_size, head_dim] so that
# channels are lanes in P.V.
K_TILES: dict[KVDtype, TileRule] = {
    KVDtype.FP32: _dense("k", "float32", tokens_last=True),
    KVDtype.BF16: _dense("k", "bfloat16", tokens_last=True),
    KVDtype.FP16: _dense("k", "float16", tokens_last=True),
    KVDtype.INT8: _int8("k", tokens_last=True),
    KVDtype.INT4: _int4("k", tokens_last=True),
    KVDtype.FP8: _dense("k", "uint8", tokens_last=True),
}
V_TILES: dict[KVDtype, TileRule] = {
    KVDtype.FP32: _dense("v", "float32", tokens_last=False),
    KVDtype.BF16: _dense("v", "bfloat16", tokens_last=False),
    KVDtype.FP16: _dense("v", "float16", tokens_last=False),
    KVDtype.INT8: _int8("v", tokens_last=False),
    KVDtype.INT4: _int4("v", tokens_last=False),
    KVDtype.FP8: _dense("v", "uint8", tokens_last=False),
}


_HEAD_MULTIPLES = {KVDtype.INT8: 4, KVDtype.INT4: 32}


def check_head_dim(dtype: KVDtype, head_dim: int) -> None:
    """Raises ``ConfigError`` when ``dtype`` cannot store heads of ``head_dim`` channels, with the formats that can."""
    multiple = _HEAD_MULTIPLES.get(dtype, 1)
    if head_dim % multiple:
        others = [other.value for other in KVDtype if head_dim % _HEAD_MULTIPLES.get(other, 1) == 0]
        raise ConfigError(
            f"KV format {dtype.value} takes head sizes that are multiples of {multiple}, but this model's heads have "
            f"{head_dim} channels; use {', '.join(others)}."
        )
