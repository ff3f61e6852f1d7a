"""The header of a GGUF file: metadata and tensor sizes, without reading (or having) the weights behind it."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kvasir.core.errors import ModelError

_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_ITEMS = 1 << 24
"""No file has more; a larger count is a broken header."""

# Type id -> (elements of a block, bytes of a block), as GGML defines them.
_TENSOR_TYPES: dict[int, tuple[int, int]] = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 40),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
    40: (64, 36),  # NVFP4
    41: (128, 18),  # Q1_0
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """``shape`` with the fastest dimension first, as the file has it."""

    name: str
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def num_elements(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """``metadata`` without long arrays: of a vocabulary only its length is kept, under ``<key>.length``."""

    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors)


def read_gguf_header(file: Path) -> GgufHeader:
    """Raises ``ModelError`` when the file is not GGUF or ends within its header."""
    try:
        with file.open("rb") as handle:
            return _Reader(handle).header()
    except OSError as error:
        raise ModelError(f"{file} cannot be read ({error.strerror or error}).") from error
    except (struct.error, UnicodeDecodeError, OverflowError) as error:
        raise ModelError(f"{file} is not a readable GGUF file: its header is cut short or broken ({error}).") from error


class _Reader:
    """Little-endian versions 2 and 3."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle

    def header(self) -> GgufHeader:
        if self._handle.read(4) != _MAGIC:
            raise ModelError("The file does not begin with GGUF.")
        version = self._scalar("I")
        if version not in (2, 3):
            raise ModelError(f"The file is GGUF version {version}; 2 and 3 (little-endian) are read.")
        num_tensors, num_keys = self._count(), self._count()
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            name, kind = self._text(), self._scalar("I")
            value = self._value(kind)
            if isinstance(value, _Length):
                metadata[f"{name}.length"] = value.length
            else:
                metadata[name] = value
        return GgufHeader(metadata=metadata, tensors=tuple(self._tensor() for _ in range(num_tensors)))

    def _tensor(self) -> GgufTensor:
        name = self._text()
        shape = tuple(self._scalar("Q") for _ in range(self._scalar("I")))
        kind = self._scalar("I")
        self._scalar("Q")  # where its data is
        if kind not in _TENSOR_TYPES:
            raise ModelError(f"The tensor {name} has type {kind}, whose size is not known.")
        per_block, block_bytes = _TENSOR_TYPES[kind]
        num_elements = 1
        for size in shape:
            num_elements *= size
        return GgufTensor(name=name, shape=shape, num_bytes=num_elements // per_block * block_bytes)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ModelError(f"The GGUF header has a value of unknown type {kind}.")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> Any:
        kind, length = self._scalar("I"), self._count()
        if kind in _SCALARS:
            layout = struct.Struct(f"<{length}{_SCALARS[kind]}")
            data = self._handle.read(layout.size)
            return list(layout.unpack(data)) if length <= 4096 else _Length(length)
        values = [self._value(kind) for _ in range(length)]
        return values if length <= 4096 else _Length(length)

    def _text(self) -> str:
        length = self._count()
        data = self._handle.read(length)
        if len(data) != length:
            raise struct.error("a text ends early")
        return data.decode("utf-8", errors="replace")

    def _count(self) -> int:
        count = self._scalar("Q")
        if count > _MAX_ITEMS:
            raise struct.error(f"a count of {count}")
        return count

    def _scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        return layout.unpack(self._handle.read(layout.size))[0]


@dataclass(frozen=True, slots=True)
class _Length:
    """Stands for an array too long to keep."""

    length: int
