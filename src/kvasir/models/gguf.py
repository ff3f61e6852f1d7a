"""A GGUF file in, a folder in Hugging Face layout out: the whole conversion, in reading order."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

from kvasir.core.errors import ModelError
from kvasir.core.progress import Progress, no_progress
from kvasir.models.gguf_config import GgufMetadata, build_config, build_generation_config
from kvasir.models.gguf_tensors import StoredTensor, plan_tensors
from kvasir.models.gguf_tokenizer import build_tokenizer
from kvasir.models.safetensors_writer import SafetensorsWriter

_STAGE = "convert"
_ROOM_FACTOR = 1.01


def convert_gguf(file: Path, folder: Path, progress: Progress | None = None) -> None:
    """Write ``file`` as config.json, generation_config.json, tokenizer files and model.safetensors into ``folder``.

    The folder must exist.  Every weight keeps its dequantised value to the bit: F16 and BF16 tensors stay what they
    are, everything else becomes fp32.  One tensor is in memory at a time.
    Raises ``ModelError``, naming what it is, for any architecture, tensor type, tensor or tokenizer we do not serve.
    """
    progress = progress or no_progress
    progress(_STAGE, 0.0)
    reader = open_gguf(file)
    metadata = GgufMetadata.from_reader(reader)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    shapes = {name: tuple(int(d) for d in reversed(tensor.shape)) for name, tensor in tensors.items()}
    config = build_config(metadata, shapes, _rope_freqs(tensors))
    tokenizer = build_tokenizer(metadata, vocab_size=config["vocab_size"])
    config |= tokenizer.special_ids
    stored = plan_tensors(config, tensors)
    _check_room(folder, stored)
    tokenizer.write(folder)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", build_generation_config(config))
    _write_weights(folder / "model.safetensors", stored, progress)
    progress(_STAGE, 1.0)


def open_gguf(file: Path) -> Any:
    """A ``gguf.GGUFReader`` over the memory-mapped file; ``ModelError`` when it is not a whole GGUF file."""
    from gguf import GGUFReader

    try:
        return GGUFReader(file)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error, OSError) as error:
        raise ModelError(f"{file} is not a readable GGUF file ({error}); it may be cut short: get it again.") from error


def _rope_freqs(tensors: dict[str, Any]) -> Any | None:
    tensor = tensors.get("rope_freqs.weight")
    return None if tensor is None else tensor.data


def _check_room(folder: Path, stored: list[StoredTensor]) -> None:
    needed = int(sum(tensor.num_bytes for tensor in stored) * _ROOM_FACTOR)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"Converting needs {needed / 1e9:.1f} GB in {folder.parent}, but only {free / 1e9:.1f} GB are free; "
            "set KVASIR_CACHE to a folder on a larger disk."
        )


def _write_weights(file: Path, stored: list[StoredTensor], progress: Progress) -> None:
    total = sum(tensor.num_bytes for tensor in stored) or 1
    done = 0
    with SafetensorsWriter(file, [(t.name, t.dtype, t.shape) for t in stored]) as writer:
        for tensor in stored:
            writer.write(tensor.name, tensor.load())
            done += tensor.num_bytes
            progress(_STAGE, min(0.99, done / total))


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
