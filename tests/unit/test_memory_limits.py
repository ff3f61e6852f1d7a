"""What the machine or its control groups allow, read from fake proc and sys trees of every shape."""

from pathlib import Path

import pytest

from kvasir.engine.byte_size import format_bytes, parse_bytes
from kvasir.engine.cgroup import cgroup_limits
from kvasir.engine.memory import available_memory

GIB = 1 << 30
HOST_TOTAL = 692 * GIB
HOST_AVAILABLE = 600 * GIB
V1_UNLIMITED = 9223372036854771712


class FakeMachine:
    """Builds the files; sizes in bytes."""

    def __init__(self, root: Path, total: int = HOST_TOTAL, available: int = HOST_AVAILABLE) -> None:
        self.root = root
        self.mounts: list[str] = ["22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw"]
        self.memberships: list[str] = []
        self.write(
            "proc/meminfo",
            f"MemTotal: {total >> 10} kB\nMemFree: 9 kB\nMemAvailable: {available >> 10} kB\nHugePages_Total: 0",
        )
        self._save()

    def write(self, path: str, text: str | int) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n" if text != "" else "")

    def mount_v2(self, where: str = "/sys/fs/cgroup", group: str = "/") -> None:
        self.mounts.append(f"31 23 0:26 {group} {where} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate")
        self._save()

    def mount_v1(self, controllers: str, where: str, group: str = "/") -> None:
        self.mounts.append(f"35 31 0:32 {group} {where} rw shared:9 - cgroup cgroup rw,{controllers}")
        self._save()

    def join(self, line: str) -> None:
        self.memberships.append(line)
        self._save()

    def group_v2(self, path: str, limit: int | str, usage: int = 0, cached: int = 0, high: int | str = "max") -> None:
        folder = f"sys/fs/cgroup/{path}"
        self.write(f"{folder}/memory.max", limit)
        self.write(f"{folder}/memory.high", high)
        self.write(f"{folder}/memory.current", usage)
        self.write(f"{folder}/memory.stat", f"anon 5\nfile {cached * 2}\ninactive_file {cached}")

    def group_v1(
        self, path: str, limit: int, usage: int = 0, cached: int = 0, hierarchical: int = V1_UNLIMITED
    ) -> None:
        folder = f"sys/fs/cgroup/memory/{path}"
        self.write(f"{folder}/memory.limit_in_bytes", limit)
        self.write(f"{folder}/memory.usage_in_bytes", usage)
        self.write(
            f"{folder}/memory.stat",
            f"inactive_file 1\nhierarchical_memory_limit {hierarchical}\ntotal_inactive_file {cached}",
        )

    def _save(self) -> None:
        self.write("proc/self/mountinfo", "\n".join(self.mounts))
        self.write("proc/self/cgroup", "\n".join(self.memberships))

    def limits(self) -> tuple[int, int]:
        found = available_memory(self.root)
        return found.total_bytes, found.available_bytes


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_bare_metal_without_any_cgroup(machine):
    assert machine.limits() == (HOST_TOTAL, HOST_AVAILABLE)
    assert available_memory(machine.root).source == "the host"
    assert cgroup_limits(machine.root) == []


def test_v2_limit_less_usage_plus_reclaimable_cache(machine):
    machine.mount_v2()
    machine.join("0::/job")
    machine.group_v2("job", 150 * GIB, usage=30 * GIB, cached=10 * GIB)
    assert machine.limits() == (150 * GIB, 130 * GIB)
    assert available_memory(machine.root).source == "cgroup v2 memory.max of /sys/fs/cgroup/job"


def test_v2_unlimited_is_bare_metal(machine):
    machine.mount_v2()
    machine.join("0::/a/b")
    for path in ("a", "a/b"):
        machine.group_v2(path, "max", usage=40 * GIB)
    assert machine.limits() == (HOST_TOTAL, HOST_AVAILABLE)


def test_v2_memory_high_is_a_limit_too(machine):
    machine.mount_v2()
    machine.join("0::/job")
    machine.group_v2("job", 150 * GIB, usage=GIB, high=100 * GIB)
    assert machine.limits() == (100 * GIB, 99 * GIB)
    assert "memory.high" in available_memory(machine.root).source


@pytest.mark.parametrize(("parent", "child"), [(20 * GIB, 50 * GIB), (50 * GIB, 20 * GIB)])
def test_v2_the_smallest_group_on_the_path_counts(machine, parent, child):
    machine.mount_v2()
    machine.join("0::/parent/middle/child")
    machine.group_v2("parent", parent)
    machine.group_v2("parent/middle", "max")
    machine.group_v2("parent/middle/child", child)
    machine.group_v2("other", GIB)
    assert machine.limits() == (20 * GIB, 20 * GIB)


def test_total_and_available_may_come_from_different_groups(machine):
    machine.mount_v2()
    machine.join("0::/parent/child")
    machine.group_v2("parent", 100 * GIB, usage=95 * GIB)
    machine.group_v2("parent/child", 50 * GIB, usage=GIB)
    assert machine.limits() == (50 * GIB, 5 * GIB)
    source = available_memory(machine.root).source
    assert "/parent/child; available: " in source
    assert source.endswith("/parent")


def test_v2_in_a_container_with_its_own_namespace(machine):
    machine.mount_v2()
    machine.join("0::/")
    machine.group_v2("", 8 * GIB, usage=2 * GIB)
    assert machine.limits() == (8 * GIB, 6 * GIB)
    assert available_memory(machine.root).source.endswith(" of /sys/fs/cgroup")


def test_v1_limit(machine):
    machine.mount_v1("cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct")
    machine.mount_v1("memory", "/sys/fs/cgroup/memory")
    machine.join("5:cpu,cpuacct:/elsewhere")
    machine.join("4:memory:/docker/abc")
    machine.group_v1("", V1_UNLIMITED, usage=300 * GIB)
    machine.group_v1("docker", V1_UNLIMITED, usage=200 * GIB)
    machine.group_v1("docker/abc", 150 * GIB, usage=20 * GIB, cached=5 * GIB, hierarchical=150 * GIB)
    assert machine.limits() == (150 * GIB, 135 * GIB)


@pytest.mark.parametrize("sentinel", [V1_UNLIMITED, 9223372036854710272, 2**63 - 1])
def test_v1_sentinels_mean_unlimited(machine, sentinel):
    machine.mount_v1("memory", "/sys/fs/cgroup/memory")
    machine.join("4:memory:/docker/abc")
    machine.group_v1("docker/abc", sentinel, usage=500 * GIB, hierarchical=sentinel)
    assert machine.limits() == (HOST_TOTAL, HOST_AVAILABLE)


def test_v1_in_a_container_that_sees_only_its_part_of_the_tree(machine):
    machine.mount_v1("memory", "/sys/fs/cgroup/memory", group="/kubepods/pod7")
    machine.join("4:memory:/kubepods/pod7/abc")
    machine.group_v1("", 64 * GIB, usage=3 * GIB)
    machine.group_v1("abc", 16 * GIB, usage=GIB)
    assert machine.limits() == (16 * GIB, 15 * GIB)


def test_v1_a_limit_above_what_the_container_sees_is_known_from_its_statistics(machine):
    machine.mount_v1("memory", "/sys/fs/cgroup/memory", group="/docker/abc")
    machine.join("4:memory:/docker/abc")
    machine.group_v1("", V1_UNLIMITED, usage=GIB, hierarchical=12 * GIB)
    assert machine.limits() == (12 * GIB, 11 * GIB)


def test_mixed_mounts_take_the_memory_controller_where_it_is(machine):
    machine.mount_v1("memory", "/sys/fs/cgroup/memory")
    machine.mount_v2("/sys/fs/cgroup/unified")
    machine.join("4:memory:/job")
    machine.join("0::/user.slice")
    machine.write("sys/fs/cgroup/unified/user.slice/cgroup.procs", "1")
    machine.group_v1("job", 10 * GIB, usage=4 * GIB, hierarchical=10 * GIB)
    assert machine.limits() == (10 * GIB, 6 * GIB)


@pytest.mark.parametrize("path", ["/../sibling", "/not/mounted/here"])
def test_a_group_outside_of_what_is_mounted_falls_back_to_the_mount_point(machine, path):
    machine.mount_v2(group="/own")
    machine.join(f"0::{path}")
    machine.group_v2("", 7 * GIB)
    assert machine.limits() == (7 * GIB, 7 * GIB)


def test_mount_points_with_spaces(machine):
    machine.mounts.append(r"31 23 0:26 / /sys/odd\040place rw - cgroup2 cgroup2 rw")
    machine.join("0::/job")
    machine.write("sys/odd place/job/memory.max", 3 * GIB)
    assert machine.limits() == (3 * GIB, 3 * GIB)


def test_usage_above_the_limit_leaves_nothing(machine):
    machine.mount_v2()
    machine.join("0::/job")
    machine.group_v2("job", 4 * GIB, usage=5 * GIB)
    assert machine.limits() == (4 * GIB, 0)


def test_a_limit_above_the_host_changes_nothing(machine):
    machine.mount_v2()
    machine.join("0::/job")
    machine.group_v2("job", 2 * HOST_TOTAL)
    assert machine.limits() == (HOST_TOTAL, HOST_AVAILABLE)


def test_old_kernels_without_memavailable(machine):
    machine.write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 300 kB\nBuffers: 20 kB\nCached: 100 kB")
    assert machine.limits() == (1000 << 10, 420 << 10)


def test_this_machine_says_something_sensible():
    limits = available_memory()
    assert 0 < limits.available_bytes <= limits.total_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("2GiB", 2 * GIB), ("2g", 2 * GIB), ("1.5 GB", 1_500_000_000), ("512MiB", 512 << 20), ("4096", 4096), (7, 7)],
)
def test_sizes_as_people_write_them(text, num_bytes):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "2 gigs", "-1GiB", "1e9", "2 GiB 3"])
def test_what_is_not_a_size(text):
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(text)


def test_sizes_as_people_read_them():
    assert [format_bytes(n) for n in (640, 12 << 20, 149 * GIB + GIB // 10, 3 << 41)] == [
        "640 B",
        "12.0 MiB",
        "149.1 GiB",
        "6.0 TiB",
    ]
