"""The user's cache of converted models: a folder appears there whole, verified and exactly once, or not at all."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from kvasir.core.errors import ModelError

MANIFEST_NAME = "kvasir.manifest.json"


def cache_directory() -> Path:
    """``$KVASIR_CACHE``, else ``$XDG_CACHE_HOME/kvasir``, else ``~/.cache/kvasir``.  Not created here."""
    if explicit := os.environ.get("KVASIR_CACHE"):
        return Path(explicit).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).expanduser() / "kvasir"
    return Path.home() / ".cache" / "kvasir"


def is_complete(folder: Path, source: dict[str, object]) -> bool:
    """True when ``folder`` was finished by ``build_once`` from this very ``source`` and no file changed its size."""
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return manifest.get("source") == source and sizes == manifest["files"]


def build_once(folder: Path, source: dict[str, object], build: Callable[[Path], None]) -> Path:
    """Return ``folder``, made by ``build(temporary folder)`` if it is not there complete already.

    ``source`` identifies what it is made from (JSON values); another source replaces the folder.  The work happens in
    a temporary sibling that is renamed at the end, under a lock file that the operating system releases when its
    holder dies: two processes never build the same folder at once, and nobody ever sees half of one.
    Raises ``ModelError`` when the cache cannot be written; what ``build`` raises passes through.
    """
    if is_complete(folder, source):
        return folder
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{folder.name}.lock")
        with lock:
            if not is_complete(folder, source):
                _build(folder, source, build)
    except OSError as error:
        raise ModelError(
            f"The model cache {folder.parent} cannot be written ({error.strerror or error}); "
            "set KVASIR_CACHE to a folder on a disk with room."
        ) from error
    return folder


def _build(folder: Path, source: dict[str, object], build: Callable[[Path], None]) -> None:
    temporary = folder.parent / f".{folder.name}.partial"
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that died; the lock says nobody works in it
    temporary.mkdir()
    try:
        build(temporary)
        files = {file.name: file.stat().st_size for file in sorted(temporary.iterdir())}
        manifest = {"source": source, "files": files}
        (temporary / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        for file in temporary.iterdir():
            _sync(file)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync(file: Path) -> None:
    """On disk before the rename: after a power cut the folder is whole or absent."""
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
