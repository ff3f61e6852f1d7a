"""Installs the peers, each into an environment of its own; one that fails stops no other.

Usage: python -m side_by_side.install [PEER ...]   (default: all)
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from side_by_side.places import LOGS, PEERS, environment_python
from side_by_side.weights import prepare_models

INSTALLED = ".installed"
"""Written last into a peer's folder: what is there is whole."""

_LLAMA_FLAGS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}


class InstallError(Exception):
    """A step that failed, in one sentence."""


class Steps:
    """Runs commands with all that they print in one log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

    def run(self, *command: str | Path, cwd: Path | None = None) -> None:
        """Raises ``InstallError`` with the last line of a command that fails."""
        with self.log.open("a") as output:
            output.write(f"$ {' '.join(map(str, command))}\n")
            output.flush()
            done = subprocess.run(list(map(str, command)), cwd=cwd, stdout=output, stderr=subprocess.STDOUT)
        if done.returncode:
            raise InstallError(f"`{' '.join(map(str, command))[:120]}` failed: {self._reason()} (see {self.log})")

    def _reason(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines)[-1][:200]


def _with_pip(*packages: str) -> Callable[[Path, Steps], None]:
    def install(folder: Path, steps: Steps) -> None:
        steps.run(sys.executable, "-m", "venv", "--clear", folder)
        steps.run(folder / "bin" / "python", "-m", "pip", "install", *packages)

    return install


def _install_llama_cpp(folder: Path, steps: Steps) -> None:
    """The server of the llama.cpp sources inside the llama-cpp-python package, compiled for this machine.

    The package's own build makes the library alone; the server is the program that people run.
    """
    for tool in ("cmake", "c++"):
        if shutil.which(tool) is None and not (Path(sys.executable).parent / tool).exists():
            raise InstallError(f"{tool} is needed to compile it and was not found")
    cmake = shutil.which("cmake") or str(Path(sys.executable).parent / "cmake")
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "source"
    if not source.exists():
        pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=llama-cpp-python")
        steps.run(*pip, "--dest", folder, "llama-cpp-python")
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder / "unpacked", filter="data")
        (inner,) = (folder / "unpacked").iterdir()
        inner.rename(source)
        archive.unlink()
    flags = [f"-D{name}={value}" for name, value in _LLAMA_FLAGS.items()]
    steps.run(cmake, "-S", source / "vendor" / "llama.cpp", "-B", folder / "build", *flags)
    jobs = str(len(os.sched_getaffinity(0)))
    steps.run(cmake, "--build", folder / "build", "--target", "llama-server", "--parallel", jobs)


INSTALLERS: dict[str, Callable[[Path, Steps], None]] = {
    "openvino-genai": _with_pip("openvino-genai"),
    "transformers": _with_pip("transformers", "torch"),
    "llama-cpp-python": _install_llama_cpp,
}


def install(peer: str) -> str:
    """What happened, in one line; raises ``InstallError``."""
    folder = PEERS / peer
    mark = folder / INSTALLED
    if mark.exists():
        return f"already there ({mark.read_text().strip()})"
    started_s = time.monotonic()
    steps = Steps(LOGS / f"install-{peer}.log")
    INSTALLERS[peer](folder, steps)
    version = _version(peer, folder)
    mark.write_text(version + "\n")
    return f"installed ({version}) in {time.monotonic() - started_s:.0f} s"


def _version(peer: str, folder: Path) -> str:
    if peer == "llama-cpp-python":
        done = subprocess.run([folder / "build" / "bin" / "llama-server", "--version"], capture_output=True, text=True)
        return next((line for line in done.stderr.splitlines() if "version" in line), "version unknown")
    code = f"from importlib.metadata import version; print({peer!r}, version({peer!r}))"
    done = subprocess.run([environment_python(peer), "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise InstallError(f"{peer} was installed but does not answer: {done.stderr.strip()[-200:]}")
    return done.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", help=f"of {', '.join(INSTALLERS)}")
    chosen = parser.parse_args(arguments).peers or list(INSTALLERS)
    if unknown := set(chosen) - INSTALLERS.keys():
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(INSTALLERS)}")
    for path in prepare_models():
        print(f"model: {path}")
    failed = []
    for peer in chosen:
        print(f"{peer}: installing", flush=True)
        try:
            print(f"{peer}: {install(peer)}", flush=True)
        except InstallError as error:
            failed.append(peer)
            print(f"{peer}: FAILED: {error}", flush=True)
    if failed:
        print(f"not installed: {', '.join(failed)}; the others can be measured", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
