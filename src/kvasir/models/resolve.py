"""Turns what a person calls a model (demo, folder, .gguf file, Hugging Face id) into a local folder in HF layout."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from kvasir.core.errors import ModelError
from kvasir.core.progress import Progress, no_progress
from kvasir.models.model_cache import build_once, cache_directory

DEMO_NAME = "demo"
CONVERTER_VERSION = 1
"""Part of every converted folder's identity: raise it when the conversion writes something else."""

_HF_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_HF_PATTERNS = ("*.safetensors", "*.json", "tokenizer*", "*.model", "*.jinja")
_HF_IGNORED = ("consolidated*", "original/*", "*/*.safetensors")
"""The same weights a second time, in other layouts."""
_HEADER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model on local disk in HF layout: config.json, *.safetensors, tokenizer files.  ``name`` is for people."""

    name: str
    path: Path


def resolve_model(name: str, progress: Progress | None = None) -> ModelFolder:
    """The local folder of ``name``: ``demo``, a folder in HF layout, a ``.gguf`` file or a Hugging Face id.

    Downloads and converts what is not there yet, once, into the user's cache (see ``cache_directory``).
    Raises ``ModelError`` with one sentence when the model cannot be had or is not in a layout we serve.
    """
    progress = progress or no_progress
    if name == DEMO_NAME:
        from kvasir.models.demo import demo_folder

        return ModelFolder(name=DEMO_NAME, path=demo_folder(progress))
    path = Path(name).expanduser()
    if path.is_dir():
        return ModelFolder(name=path.resolve().name, path=_checked_folder(path.resolve()))
    if path.suffix.lower() == ".gguf":
        return ModelFolder(name=path.stem, path=gguf_folder(path, progress))
    if path.exists():
        raise ModelError(f"The model {name} is a file, but not a .gguf file; give a folder, a .gguf file or an id.")
    if _HF_ID.fullmatch(name) and not name.startswith((".", "/", "~")):
        return ModelFolder(name=name, path=_checked_folder(_download(name, progress)))
    raise ModelError(
        f"There is no model {name!r}: give 'demo', a local folder with a config.json, a .gguf file, "
        "or a Hugging Face id such as 'owner/name'."
    )


def gguf_folder(file: Path, progress: Progress) -> Path:
    """The cached HF-layout folder of a GGUF file, converted now if this very file was not converted before."""
    if not file.is_file():
        raise ModelError(f"There is no file {file}.")
    source = file_identity(file)
    digest = hashlib.sha256(repr(sorted(source.items())).encode()).hexdigest()[:16]
    folder = cache_directory() / "gguf" / f"{file.stem}-{digest}"
    return build_once(folder, source, lambda target: _convert(file, target, progress))


def file_identity(file: Path) -> dict[str, object]:
    """What tells one GGUF file from another without reading it all: size, time of change, digest of its header."""
    stat = file.stat()
    with file.open("rb") as handle:
        header = hashlib.sha256(handle.read(_HEADER_BYTES)).hexdigest()
    return {
        "size_bytes": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "header_sha256": header,
        "converter": CONVERTER_VERSION,
    }


def _convert(file: Path, target: Path, progress: Progress) -> None:
    from kvasir.models.gguf import convert_gguf

    convert_gguf(file, target, progress)


def _checked_folder(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelError(f"The folder {folder} has no config.json, so it is not a model in Hugging Face layout.")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"The folder {folder} has no *.safetensors file; other weight files are not read.")
    return folder


def _download(model_id: str, progress: Progress) -> Path:
    """The snapshot of a Hugging Face id, from the hub or, when it cannot be reached, from its local cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    progress(f"download {model_id}", 0.0)
    try:
        folder = snapshot_download(model_id, allow_patterns=list(_HF_PATTERNS), ignore_patterns=list(_HF_IGNORED))
    except GatedRepoError as error:
        raise ModelError(
            f"{model_id} is gated: accept its terms on its page and log in with `hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"Hugging Face knows no model {model_id} that you may read; check the id, or give a local folder."
        ) from error
    except (LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelError(
            f"{model_id} is neither in the local Hugging Face cache nor can it be downloaded "
            f"({type(error).__name__}: no network, or HF_HUB_OFFLINE is set); 'demo', a local folder or a .gguf file "
            "work without the network."
        ) from error
    progress(f"download {model_id}", 1.0)
    return Path(folder)
