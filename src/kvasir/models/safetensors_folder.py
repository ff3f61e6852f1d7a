"""The weights of a folder: safetensors files with headers verified against the files, tensors as memory maps."""

import json
import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvasir.core.errors import ModelError

if TYPE_CHECKING:
    import torch

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where a tensor is: bytes [start, start + num_bytes) of ``file``; ``dtype`` is the safetensors name."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """One safetensors file.  ``header`` is its raw JSON, ``size_bytes`` the whole file's size."""

    path: Path
    size_bytes: int
    header: bytes
    entries: tuple[TensorEntry, ...]


def read_weight_files(folder: Path) -> tuple[WeightFile, ...]:
    """Headers of the folder's weight files, by name: the index's shards, or model.safetensors, or the only file.

    Raises ``ModelError`` when there is none, when it is unclear which to read, when a file is cut short, its header
    does not describe it, or a tensor is in two files or in none.
    """
    index = folder / INDEX_NAME
    if not index.is_file():
        return (_read_file(_single_file(folder)),)
    try:
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is no index of weight files ({error!r}).") from error
    files = tuple(_read_file(folder / Path(name).name) for name in names)
    seen: dict[str, Path] = {}
    for entry in (entry for file in files for entry in file.entries):
        if entry.name in seen:
            raise ModelError(f"The weight {entry.name} is in both {seen[entry.name].name} and {entry.file.name}.")
        seen[entry.name] = entry.file
    lost = sorted(set(weight_map) - set(seen))
    if lost:
        raise ModelError(f"{index.name} lists the weight {lost[0]}, but {weight_map[lost[0]]} does not hold it.")
    return files


class MappedWeights:
    """Tensors of weight files as views of private memory maps: copy what you keep, then ``release``."""

    def __init__(self, files: tuple[WeightFile, ...]) -> None:
        self.entries: dict[str, TensorEntry] = {entry.name: entry for file in files for entry in file.entries}
        self._maps: dict[Path, mmap.mmap] = {}
        for file in files:
            with file.path.open("rb") as handle:
                self._maps[file.path] = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)

    def view(self, name: str) -> "torch.Tensor":
        """The tensor as stored (fp32, fp16 or bf16).  Never write to it."""
        import torch

        entry = self.entries[name]
        raw = torch.frombuffer(self._maps[entry.file], dtype=torch.uint8, count=entry.num_bytes, offset=entry.start)
        if raw.data_ptr() % _ITEM_BYTES[entry.dtype]:
            raw = raw.clone()
        return raw.view(getattr(torch, _TORCH_NAMES[entry.dtype])).view(entry.shape)

    def release(self) -> None:
        """Give the pages read so far back to the system, so that loading needs the memory of one layer."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for memory in self._maps.values():
                memory.madvise(mmap.MADV_DONTNEED)


def _single_file(folder: Path) -> Path:
    if (folder / SINGLE_NAME).is_file():
        return folder / SINGLE_NAME
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise ModelError(f"The folder {folder} has no *.safetensors file; other weight files are not read.")
    raise ModelError(
        f"The folder {folder} has {len(found)} safetensors files but no {INDEX_NAME} that says which to read."
    )


def _read_file(path: Path) -> WeightFile:
    try:
        size = path.stat().st_size
        with path.open("rb") as handle:
            prefix = handle.read(_LENGTH_BYTES)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == _LENGTH_BYTES else size
            if length > min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
                raise ModelError(f"{path} is no safetensors file: its header would be {length} of {size} bytes.")
            header = handle.read(length)
        described: dict[str, Any] = json.loads(header)
        described.pop("__metadata__", None)
        data_start = _LENGTH_BYTES + length
        entries = [_read_entry(path, name, value, data_start) for name, value in described.items()]
    except OSError as error:
        raise ModelError(f"The weight file {path} cannot be read ({error.strerror}).") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"The header of {path} cannot be read ({error!r}).") from error
    _check_extent(path, size, data_start, entries)
    return WeightFile(path=path, size_bytes=size, header=header, entries=tuple(entries))


def _read_entry(path: Path, name: str, value: dict[str, Any], data_start: int) -> TensorEntry:
    dtype, shape = value["dtype"], tuple(int(d) for d in value["shape"])
    if dtype not in _ITEM_BYTES:
        raise ModelError(
            f"The weight {name} in {path.name} has dtype {dtype}, which is not read; use {', '.join(_ITEM_BYTES)}."
        )
    begin, end = value["data_offsets"]
    num_bytes = prod(shape) * _ITEM_BYTES[dtype]
    if end - begin != num_bytes or begin < 0:
        raise ModelError(
            f"The weight {name} in {path.name} has {end - begin} bytes, but {dtype} of shape {list(shape)} needs "
            f"{num_bytes}."
        )
    return TensorEntry(name=name, file=path, dtype=dtype, shape=shape, start=data_start + begin, num_bytes=num_bytes)


def _check_extent(path: Path, size: int, data_start: int, entries: list[TensorEntry]) -> None:
    """The tensors tile the data part without gap or overlap, as the format demands; a cut file fails here."""
    position = data_start
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.num_bytes)):
        if entry.start != position:
            raise ModelError(f"The weight {entry.name} in {path.name} starts at {entry.start}, not at {position}.")
        position += entry.num_bytes
    if position != size:
        raise ModelError(f"{path} has {size} bytes, but its header describes {position}: it is cut short or damaged.")
