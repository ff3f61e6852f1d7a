"""Hit rates of small traces by hand, through the engine's own block manager."""

import pytest

from kvasir.core.errors import ConfigError
from kvasir.simulator.cache_replay import hit_curve, replay_cache
from kvasir.simulator.eviction import EvictionPolicy
from kvasir.workload.traces.trace import Trace, TraceRequest

LRU, FIFO, BELADY = EvictionPolicy.LRU, EvictionPolicy.FIFO, EvictionPolicy.BELADY


def trace_of(*prompts, block=16, last=16):
    """Prompts as lists of ids; the last block of each has ``last`` tokens."""
    requests = tuple(
        TraceRequest(
            request_id=str(i),
            arrival_s=float(i),
            num_prompt_tokens=(len(ids) - 1) * block + last,
            num_output_tokens=1,
            hash_ids=tuple(ids),
        )
        for i, ids in enumerate(prompts)
    )
    return Trace(name="hand", requests=requests, hash_block_size=block)


def test_hits_are_a_run_from_the_start():
    trace = trace_of([1, 2, 3], [1, 2, 4], [9, 2, 3])
    assert replay_cache(trace, LRU).hit_tokens == (0, 32, 0)


def test_the_partly_filled_last_block_counts_by_its_tokens():
    trace = trace_of([1, 2, 3], [1, 2, 3], last=5)
    assert replay_cache(trace, LRU).hit_tokens == (0, 37)
    assert replay_cache(trace, LRU).hit_rate() == pytest.approx(37 / 74)


def test_lru_keeps_what_was_used_last():
    # Room for two.  1 2 | 1 is used again | 3 pushes 2 out | 1 is still there, 2 is not.
    trace = trace_of([1], [2], [1], [3], [1], [2])
    assert replay_cache(trace, LRU, 2).hit_tokens == (0, 0, 16, 0, 16, 0)


def test_fifo_forgets_what_came_first_however_often_it_is_used():
    trace = trace_of([1], [2], [1], [3], [1], [2])
    assert replay_cache(trace, FIFO, 2).hit_tokens == (0, 0, 16, 0, 0, 0)


def test_belady_keeps_what_is_wanted_next():
    # Room for one: 1 stays through 2 and 3, which are never wanted again.
    trace = trace_of([1], [2], [1], [3], [1])
    assert replay_cache(trace, BELADY, 1).hit_tokens == (0, 0, 16, 0, 16)
    assert replay_cache(trace, LRU, 1).hit_tokens == (0, 0, 0, 0, 0)


def test_of_a_prompt_too_long_for_the_cache_the_start_is_kept():
    trace = trace_of([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert replay_cache(trace, LRU, 2).hit_tokens == (0, 32)
    assert replay_cache(trace, BELADY, 2).hit_tokens == (0, 32)
    assert replay_cache(trace, FIFO, 2).hit_tokens == (0, 0)  # the start came first, so it went first


def test_the_last_half_is_counted_alone():
    trace = trace_of([1], [2], [1], [2])
    replay = replay_cache(trace, LRU)
    assert (replay.hit_rate(), replay.hit_rate(0.5)) == (0.5, 1.0)


def test_a_curve_plays_the_unlimited_cache_once():
    runs = hit_curve(trace_of([1], [1]), [LRU, FIFO], [1, None])
    assert [(run.policy, run.num_blocks) for run in runs] == [(LRU, 1), (FIFO, 1), (LRU, None)]


def test_progress_is_told():
    told = []
    replay_cache(trace_of([1], [2]), LRU, 4, lambda stage, fraction: told.append((stage, fraction)))
    assert told[0] == ("lru, 4 blocks", 0.0) and told[-1] == ("lru, 4 blocks", 1.0)


def test_traces_that_know_nothing_are_refused():
    lone = Trace(name="lone", requests=trace_of([1]).requests)
    with pytest.raises(ConfigError, match="no block ids"):
        replay_cache(lone, LRU)
    with pytest.raises(ConfigError, match="multiples of 16"):
        replay_cache(trace_of([1], block=20), LRU)
