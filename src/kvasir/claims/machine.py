"""The card of this machine: what a reader needs to judge a figure that was measured on it."""

import os
import platform
from importlib import metadata
from pathlib import Path

import psutil

# Instruction sets that change which kernel runs, as /proc/cpuinfo names them.
_NOTED_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_int8",
    "asimd",
    "asimddp",
    "i8mm",
)
_NOTED_PACKAGES = ("kvasir", "torch", "numpy", "transformers")


def machine_card() -> dict[str, object]:
    """CPU, cores this process may use, memory, instruction sets, system and package versions, as JSON values."""
    fields = _cpuinfo()
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return {
        "cpu": fields.get("model name") or platform.processor() or platform.machine(),
        "num_cores": _num_usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "instruction_sets": [name for name in _NOTED_FLAGS if name in flags],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in _NOTED_PACKAGES if (version := _version_of(name))},
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _num_usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpuinfo() -> dict[str, str]:
    """The first processor's fields of /proc/cpuinfo; empty where there is no such file."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text().split("\n\n", 1)[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
