"""Bytes to blocks: exact for one group, the best split for several, refusals that name both numbers."""

import random
import re

import pytest

from kvasir.core.errors import ConfigError
from kvasir.engine.config import CacheConfig, MemoryConfig
from kvasir.engine.memory import MemoryLimits, MemoryNeeds, MemoryPlan, plan_memory
from kvasir.kv.allocation import AllocationKind
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.head_group import HeadGroup, all_heads
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.retention import FULL, Retention, windowed
from kvasir.scheduling.config import SchedulerConfig

GIB = 1 << 30
MIB = 1 << 20
DEMO = KVGeometry(num_layers=30, num_kv_heads=3, head_dim=64, sliding_windows=(None,) * 30)
HYBRID = KVGeometry(
    num_layers=24, num_kv_heads=4, head_dim=128, sliding_windows=tuple(None if i % 6 == 5 else 512 for i in range(24))
)
LIMITS = MemoryLimits(total_bytes=24 * GIB, available_bytes=20 * GIB, source="the host")


def layout_of(geometry: KVGeometry, block_size: int = 16, retention: Retention = FULL) -> KVLayout:
    return KVLayout.from_geometry(
        geometry, block_size=block_size, k_dtype=KVDtype.BF16, v_dtype=KVDtype.BF16, retention=retention
    )


def plan(
    geometry: KVGeometry = DEMO,
    *,
    max_model_len: int = 8192,
    limits: MemoryLimits = LIMITS,
    block_size: int = 16,
    scheduler: SchedulerConfig | None = None,
    allocation: AllocationKind = AllocationKind.PAGED,
    layout: KVLayout | None = None,
    **memory,
):
    needs = MemoryNeeds(
        layout=layout or layout_of(geometry, block_size),
        max_model_len=max_model_len,
        weights_bytes=200 * MIB,
        working_bytes=500 * MIB,
    )
    cache = CacheConfig(block_size=block_size, memory=MemoryConfig(**memory), allocation=allocation)
    return plan_memory(limits, needs, cache, scheduler or SchedulerConfig())


def test_one_group_takes_every_block_that_fits():
    found = plan(kv_cache_memory_bytes=2 * GIB)
    block_bytes = 30 * 3 * 2 * 64 * 16 * 2
    assert found.num_blocks == (2 * GIB // block_bytes,)
    assert found.pool_bytes == found.num_blocks[0] * block_bytes
    assert found.num_tokens == found.num_blocks[0] * 16
    assert found.max_concurrency == pytest.approx(found.num_tokens / 8192)
    assert found.num_sequences == 11
    assert found.headroom_bytes == 20 * GIB - 700 * MIB - found.pool_bytes


def test_utilisation_is_of_the_total_less_weights_and_working_memory():
    found = plan(memory_utilization=0.5)
    budget = 12 * GIB - 700 * MIB
    assert budget - layout_of(DEMO).groups[0].block_bytes < found.pool_bytes <= budget


def test_utilisation_never_takes_more_than_is_available():
    found = plan(memory_utilization=1.0)
    assert found.pool_bytes <= 20 * GIB - 700 * MIB
    assert 0 <= found.headroom_bytes < layout_of(DEMO).groups[0].block_bytes


def test_several_groups_hold_what_the_configured_concurrency_needs():
    """As many sequences at once as fit at the longest context: then nothing better can be done for it."""
    found = plan(HYBRID, kv_cache_memory_bytes=2 * GIB, scheduler=SchedulerConfig(max_num_seqs=16))
    full, window = layout_of(HYBRID).groups
    if full.retention.window:
        full, window = window, full
    by_spec = dict(zip(layout_of(HYBRID).groups, found.num_blocks, strict=True))
    # A decoding sequence holds its window and a block more; a step's chunk passes through the pool once.
    assert (full.max_blocks(8192, 512), window.max_blocks(8192, 512), window.max_blocks(8192, 1)) == (512, 65, 33)
    assert by_spec[full] >= 16 * 512
    assert by_spec[window] >= 16 * 33 + 32
    assert found.num_sequences >= 16
    assert 2 * GIB - min(full.block_bytes, window.block_bytes) < found.pool_bytes <= 2 * GIB


def best_share(found: MemoryPlan, layout: KVLayout, scheduler: SchedulerConfig, length: int) -> float:
    """The sequences of ``length`` the plan holds, over those that a split made for them would."""
    held = [spec.max_blocks(length, 1) for spec in layout.groups]
    whole = [spec.max_blocks(length, scheduler.max_num_batched_tokens) for spec in layout.groups]
    passing = [most - least for most, least in zip(whole, held, strict=True)]
    have = min((count - more) / need for count, more, need in zip(found.num_blocks, passing, held, strict=True))
    once = sum(spec.pool_bytes(n) for spec, n in zip(layout.groups, passing, strict=True))
    best = (found.pool_bytes - once) / sum(spec.pool_bytes(n) for spec, n in zip(layout.groups, held, strict=True))
    return min(have, scheduler.max_num_seqs) / min(best, scheduler.max_num_seqs)


def test_a_few_full_heads_really_admit_more_sequences():
    """17 of 90 heads keep everything, the others 4 and 1024 tokens, in 8 bits: about five times the sequences of a
    16-bit cache, six where that many are asked for, and prompts of no length pay much for the split."""
    heads = all_heads(30, 3)
    groups = (
        HeadGroup(heads=heads[:17], k_dtype=KVDtype.INT8, v_dtype=KVDtype.INT8),
        HeadGroup(
            heads=heads[17:],
            retention=windowed(sinks=4, window=1024),
            k_dtype=KVDtype.INT8,
            v_dtype=KVDtype.INT8,
        ),
    )
    layout = KVLayout.from_geometry(DEMO, block_size=16, k_dtype=KVDtype.BF16, v_dtype=KVDtype.BF16, head_groups=groups)
    whole = plan(kv_cache_memory_bytes=GIB, max_model_len=7600)
    for max_num_seqs, times in ((32, 6), (64, 4.9), (256, 4)):
        scheduler = SchedulerConfig(max_num_seqs=max_num_seqs)
        found = plan(layout=layout, kv_cache_memory_bytes=GIB, max_model_len=7600, scheduler=scheduler)
        shares = [best_share(found, layout, scheduler, length) for length in (100, 500, 1040, 2000, 4000, 7600)]
        assert min(shares) >= 0.66, (max_num_seqs, shares)
        assert found.max_concurrency >= times * whole.max_concurrency


def test_split_properties_over_random_geometries():
    rng = random.Random(0)
    for _ in range(200):
        num_layers = rng.randint(1, 40)
        windows = [None, 64, rng.choice([100, 512, 4096])]
        geometry = KVGeometry(
            num_layers=num_layers,
            num_kv_heads=rng.randint(1, 8),
            head_dim=rng.choice([16, 64, 128]),
            sliding_windows=tuple(rng.choice(windows) for _ in range(num_layers)),
        )
        block_size, length = rng.choice([16, 32, 64]), rng.randint(1, 20_000)
        scheduler = SchedulerConfig(max_num_batched_tokens=rng.choice([64, 512, 2048]))
        budget = rng.randint(MIB, 8 * GIB)
        retention = rng.choice([FULL, windowed(sinks=rng.randint(0, 40), window=rng.randint(1, 2000))])
        layout = layout_of(geometry, block_size, retention if None in geometry.sliding_windows else FULL)
        needs = [spec.max_blocks(length, scheduler.max_num_batched_tokens) for spec in layout.groups]
        need_bytes = sum(spec.pool_bytes(n) for spec, n in zip(layout.groups, needs, strict=True))
        keywords = {
            "layout": layout,
            "max_model_len": length,
            "block_size": block_size,
            "scheduler": scheduler,
            "kv_cache_memory_bytes": budget,
        }
        if need_bytes > budget:
            with pytest.raises(ConfigError):
                plan(geometry, **keywords)
            continue
        found = plan(geometry, **keywords)
        assert all(have >= need for have, need in zip(found.num_blocks, needs, strict=True))
        assert found.num_sequences >= 1
        smallest = min(spec.block_bytes for spec in layout.groups)
        assert budget - smallest < found.pool_bytes <= budget


def test_too_long_a_context_is_refused_with_numbers_that_work():
    with pytest.raises(ConfigError) as caught:
        plan(kv_cache_memory_bytes=100 * MIB)
    message = str(caught.value)
    assert "--max-model-len 8192 needs 180.0 MiB" in message
    assert "the pool has 100.0 MiB" in message
    assert "--kv-cache-memory" in message
    longest = int(re.search(r"at most (\d+)", message)[1])
    assert plan(kv_cache_memory_bytes=100 * MIB, max_model_len=longest).num_sequences == 1
    with pytest.raises(ConfigError):
        plan(kv_cache_memory_bytes=100 * MIB, max_model_len=longest + 1)


def test_too_long_a_context_for_several_groups():
    with pytest.raises(ConfigError) as caught:
        plan(HYBRID, kv_cache_memory_bytes=64 * MIB)
    longest = int(re.search(r"at most (\d+)", str(caught.value))[1])
    assert plan(HYBRID, kv_cache_memory_bytes=64 * MIB, max_model_len=longest).num_sequences == 1
    with pytest.raises(ConfigError):
        plan(HYBRID, kv_cache_memory_bytes=64 * MIB, max_model_len=longest + 1)


def test_a_pool_below_one_block_has_no_length_that_works():
    with pytest.raises(ConfigError, match=r"\(0 tokens\); raise --kv-cache-memory"):
        plan(kv_cache_memory_bytes=1000)


def test_the_refusal_names_the_flag_that_sizes_the_pool():
    small = MemoryLimits(total_bytes=2 * GIB, available_bytes=2 * GIB, source="cgroup v2 memory.max of /sys/fs/cgroup")
    with pytest.raises(ConfigError, match="raise --memory-utilization"):
        plan(limits=small, memory_utilization=0.4)


def test_an_explicit_pool_larger_than_what_is_available_is_refused():
    with pytest.raises(ConfigError) as caught:
        plan(kv_cache_memory_bytes=40 * GIB)
    message = str(caught.value)
    assert "40.0 GiB" in message
    assert "20.0 GiB of 24.0 GiB" in message
    assert "at most 19.3 GiB" in message


def test_weights_that_leave_nothing_are_refused():
    small = MemoryLimits(total_bytes=GIB, available_bytes=GIB, source="cgroup v1 memory.limit_in_bytes of /x")
    with pytest.raises(ConfigError, match="nothing is left for the KV cache"):
        plan(limits=small, memory_utilization=0.5)


def test_contiguous_allocation_counts_whole_regions_in_every_group():
    found = plan(HYBRID, kv_cache_memory_bytes=2 * GIB, allocation=AllocationKind.CONTIGUOUS)
    assert found.num_blocks[0] == pytest.approx(found.num_blocks[1], rel=0.01)
    assert found.num_sequences == found.num_blocks[0] // 512
