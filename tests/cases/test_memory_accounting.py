"""Faults seen in the field: memory that the container does not have (M1)."""

from pathlib import Path

import pytest

from kvasir.core.errors import ConfigError
from kvasir.engine.config import CacheConfig, MemoryConfig
from kvasir.engine.memory import MemoryNeeds, available_memory, plan_memory
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.scheduling.config import SchedulerConfig

GIB = 1 << 30
LLAMA_8B = KVGeometry(num_layers=32, num_kv_heads=8, head_dim=128, sliding_windows=(None,) * 32)


def _machine(root: Path, memory_max: str) -> Path:
    """A container on a 692.65 GiB host with 680 GiB free."""
    files = {
        "proc/meminfo": f"MemTotal: {int(692.65 * GIB) >> 10} kB\nMemFree: 9 kB\nMemAvailable: {680 * GIB >> 10} kB\n",
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": "31 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
        "sys/fs/cgroup/memory.max": f"{memory_max}\n",
        "sys/fs/cgroup/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/memory.stat": "inactive_file 0\n",
    }
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def _plan(root: Path, memory: MemoryConfig):
    layout = KVLayout.from_geometry(LLAMA_8B, block_size=16, k_dtype=KVDtype.BF16, v_dtype=KVDtype.BF16)
    needs = MemoryNeeds(layout=layout, max_model_len=131_072, weights_bytes=16 * GIB, working_bytes=GIB)
    return plan_memory(available_memory(root), needs, CacheConfig(memory=memory), SchedulerConfig())


def test_M1_the_pool_is_sized_from_the_containers_limit_not_the_hosts(tmp_path: Path):
    root = _machine(tmp_path, str(150 * GIB))
    limits = available_memory(root)
    assert (limits.total_bytes, limits.available_bytes) == (150 * GIB, 149 * GIB)
    plan = _plan(root, MemoryConfig())
    assert plan.pool_bytes <= 150 * GIB * 0.5 - 17 * GIB
    assert plan.headroom_bytes >= 0
    greedy = _plan(root, MemoryConfig(memory_utilization=1.0))
    assert greedy.pool_bytes + 17 * GIB <= 149 * GIB


def test_M1_asking_for_more_than_the_container_has_is_one_sentence_with_both_numbers(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"206\.5 GiB is more than there is: 149\.0 GiB of 150\.0 GiB"):
        _plan(_machine(tmp_path, str(150 * GIB)), MemoryConfig(kv_cache_memory_bytes=int(206.54 * GIB)))


def test_M1_an_unlimited_container_behaves_as_bare_metal(tmp_path: Path):
    limits = available_memory(_machine(tmp_path, "max"))
    assert limits.total_bytes == int(692.65 * GIB) >> 10 << 10
    assert limits.available_bytes == 680 * GIB
    assert limits.source == "the host"
