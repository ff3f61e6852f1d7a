"""Writes a safetensors file tensor by tensor, so that a model of any size needs the memory of one tensor."""

import json
import struct
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import numpy as np

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_ALIGNMENT_BYTES = 64


class SafetensorsWriter:
    """Context manager.  ``entries`` are (name, safetensors dtype, shape); ``write`` must then follow their order.

    File format: 8 bytes little-endian header length, JSON header padded with spaces, raw little-endian data.
    The header is padded so that the data starts on a 64-byte boundary of the memory map.
    """

    def __init__(self, file: Path, entries: list[tuple[str, str, tuple[int, ...]]]) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        offset = 0
        self._expected: list[tuple[str, int]] = []
        for name, dtype, shape in entries:
            size = prod(shape) * ITEM_BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
            self._expected.append((name, size))
            offset += size
        encoded = json.dumps(header, separators=(",", ":")).encode()
        encoded += b" " * (-(len(encoded) + 8) % _ALIGNMENT_BYTES)
        self._num_written = 0
        self._handle = file.open("wb")
        self._handle.write(struct.pack("<Q", len(encoded)) + encoded)

    def write(self, name: str, values: "np.ndarray") -> None:
        """``values``: C-contiguous array of the announced bytes (BF16 as its raw 16 bits)."""
        expected_name, expected_bytes = self._expected[self._num_written]
        if (name, values.nbytes) != (expected_name, expected_bytes):
            raise ValueError(f"expected {expected_name} with {expected_bytes} bytes, got {name} with {values.nbytes}")
        self._handle.write(values.data)
        self._num_written += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.close()
        if kind is None and self._num_written != len(self._expected):
            raise ValueError(f"{len(self._expected) - self._num_written} announced tensors were not written")
