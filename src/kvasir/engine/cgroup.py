"""The memory limits of every control group above this process: v1, v2, nested, mixed; no limit means none listed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# v1 says "unlimited" with the largest multiple of the memory page size below 2^63; nothing near it is a real limit.
_UNLIMITED_BYTES = 1 << 60
# Spaces in the paths of mountinfo are written as \040.
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimit:
    """One group's limit and what of it can still be had: free, or page cache that is given up on demand."""

    source: str
    limit_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class _Flavour:
    """The file names of one cgroup version.  Where several files or keys give a limit, all that exist count."""

    version: int
    limit_files: tuple[str, ...]
    stat_limit_keys: tuple[str, ...]
    usage_file: str
    reclaimable_keys: tuple[str, ...]


_V1 = _Flavour(
    version=1,
    limit_files=("memory.limit_in_bytes",),
    # Also names the limits of groups above the ones that a container can see.
    stat_limit_keys=("hierarchical_memory_limit",),
    usage_file="memory.usage_in_bytes",
    reclaimable_keys=("total_inactive_file", "inactive_file"),
)
_V2 = _Flavour(
    version=2,
    # Beyond memory.high a group is throttled until it is no use to anybody: that is a limit too.
    limit_files=("memory.max", "memory.high"),
    stat_limit_keys=(),
    usage_file="memory.current",
    reclaimable_keys=("inactive_file",),
)


def cgroup_limits(root: Path = Path("/")) -> list[CgroupLimit]:
    """The limited groups on the way from this process's group to the top, in every memory hierarchy that is mounted.

    ``root`` is where proc and sys are looked for.  Groups without a limit, and files that are missing or may not be
    read, say nothing and are left out.
    """
    own_paths = _own_paths(root)
    limits = []
    for flavour, mount_root, mount_point in _mounts(root):
        for group in _groups(own_paths.get(flavour.version, "/"), mount_root):
            # as_posix() of an empty relative path is ".", which names the mount point itself.
            limit = _read_group(root / mount_point.lstrip("/") / group, flavour, f"{mount_point}/{group}")
            if limit is not None:
                limits.append(limit)
    return limits


def _own_paths(root: Path) -> dict[int, str]:
    """The path of this process's memory group by cgroup version."""
    paths = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            paths[2] = path
        elif "memory" in controllers.split(","):
            paths[1] = path
    return paths


def _mounts(root: Path) -> Iterator[tuple[_Flavour, str, str]]:
    """(version, the group that is mounted, where) for every mounted hierarchy that may control memory."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        _, _, _, mount_root, mount_point, *_ = left.split(" ")
        filesystem, _, options = right.split(" ", 2)
        where = _OCTAL.sub(lambda match: chr(int(match[1], 8)), mount_point)
        if filesystem == "cgroup2":
            yield _V2, mount_root, where
        elif filesystem == "cgroup" and "memory" in options.split(","):
            yield _V1, mount_root, where


def _groups(own_path: str, mount_root: str) -> Iterator[str]:
    """This process's group and those above it, relative to the mount point, innermost first; "." is the mount point.

    In a container without its own cgroup namespace the path is the host's and the mount shows a part of the tree:

        path   /kubepods/pod7/abc      mounted  /kubepods/pod7      ->  abc, .
    """
    path = PurePosixPath(own_path)
    if ".." in path.parts or not path.is_relative_to(mount_root):
        relative = PurePosixPath()  # our group is outside of what is mounted: all we see is the mount point
    else:
        relative = path.relative_to(mount_root)
    yield relative.as_posix()
    for parent in relative.parents:
        yield parent.as_posix()


def _read_group(folder: Path, flavour: _Flavour, name: str) -> CgroupLimit | None:
    stat = _parse_stat(_read(folder / "memory.stat"))
    limits = [(key, stat[key]) for key in flavour.stat_limit_keys if key in stat]
    for file in flavour.limit_files:
        text = _read(folder / file).strip()
        if text and text != "max":
            limits.append((file, int(text)))
    if not limits:
        return None
    what, limit_bytes = min(limits, key=lambda pair: pair[1])
    if limit_bytes >= _UNLIMITED_BYTES:
        return None
    usage_bytes = int(_read(folder / flavour.usage_file).strip() or 0)
    reclaimable_bytes = next((stat[key] for key in flavour.reclaimable_keys if key in stat), 0)
    held_bytes = max(0, usage_bytes - reclaimable_bytes)
    return CgroupLimit(
        source=f"cgroup v{flavour.version} {what} of {name.removesuffix('/.')}",
        limit_bytes=limit_bytes,
        available_bytes=max(0, limit_bytes - held_bytes),
    )


def _parse_stat(text: str) -> dict[str, int]:
    return {key: int(value) for key, _, value in (line.partition(" ") for line in text.splitlines())}


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
