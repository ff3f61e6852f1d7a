"""Names a model by its content, so that cached blocks are never read by another model.  No torch."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from kvasir.models.config import ModelConfig, RopeKind
from kvasir.models.safetensors_folder import TensorEntry, WeightFile, read_weight_files
from kvasir.models.weight_dtype import WeightDtype

_SAMPLE_BYTES = 1024


def model_digest(folder: Path) -> str:
    """SHA-256 (hex) over config.json, every weight file's name, size and header, and three samples of every tensor.

    Reads about 3 KiB a tensor, so it takes milliseconds.  It tells models apart (a fine-tune or a merge changes
    every sampled tensor it touches); it is no checksum: a damaged byte between the samples goes unseen.
    Raises ``ModelError`` when the folder's weights cannot be read.
    """
    digest = hashlib.sha256()
    _add(digest, b"config", (folder / "config.json").read_bytes())
    for file in read_weight_files(folder):
        _add(digest, b"file", file.path.name.encode())
        _add(digest, b"size", str(file.size_bytes).encode())
        _add(digest, b"header", file.header)
        for sample in _samples(file):
            _add(digest, b"sample", sample)
    return digest.hexdigest()


def computation_digest(
    model: str, config: ModelConfig, weight_dtype: WeightDtype, max_model_len: int, kernels: str
) -> str:
    """SHA-256 (hex) over what decides a token's K and V besides the tokens before it and the KV layout.

    ``model`` is ``model_digest``, ``kernels`` the kernels' name.  ``max_model_len`` counts only where the rotation
    depends on it (dynamic RoPE beyond the trained context).
    """
    base_length = max(max_model_len, config.max_position_embeddings) if config.rope.kind is RopeKind.DYNAMIC else 0
    digest = hashlib.sha256()
    for tag, value in (
        (b"model", model),
        (b"weights", weight_dtype.value),
        (b"rope", str(base_length)),
        (b"kernels", kernels),
    ):
        _add(digest, tag, value.encode())
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", tag: bytes, value: bytes) -> None:
    """Tagged and length-prefixed, so that no two different models encode alike."""
    digest.update(tag + len(value).to_bytes(8, "little") + value)


def _samples(file: WeightFile) -> Iterator[bytes]:
    with file.path.open("rb") as handle:
        for entry in file.entries:
            yield from _tensor_samples(handle, entry)


def _tensor_samples(handle: BinaryIO, entry: TensorEntry) -> Iterator[bytes]:
    last = max(0, entry.num_bytes - _SAMPLE_BYTES)
    for offset in sorted({0, last // 2, last}):
        handle.seek(entry.start + offset)
        yield handle.read(min(_SAMPLE_BYTES, entry.num_bytes))
