"""What must hold of every policy on every trace."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_traffic import BLOCK, COST, PATHS, make_trace, setups, timed_traces

from kvasir.scheduling.config import SchedulerConfig
from kvasir.simulator.cache_replay import replay_cache
from kvasir.simulator.eviction import EvictionPolicy
from kvasir.simulator.simulate import SimulationSetup, simulate

QUICK = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def hits(trace, policy, num_blocks):
    return sum(replay_cache(trace, policy, num_blocks).hit_tokens)


@QUICK
@given(paths=PATHS, num_blocks=st.integers(1, 30))
def test_no_policy_beats_belady_and_belady_not_the_unlimited_cache(paths, num_blocks):
    trace = make_trace(paths)
    best = hits(trace, EvictionPolicy.BELADY, num_blocks)
    assert hits(trace, EvictionPolicy.LRU, num_blocks) <= best
    assert hits(trace, EvictionPolicy.FIFO, num_blocks) <= best
    assert best <= hits(trace, EvictionPolicy.LRU, None)


@QUICK
@given(paths=PATHS, num_blocks=st.integers(1, 30))
def test_a_larger_lru_cache_never_hits_less(paths, num_blocks):
    trace = make_trace(paths)
    smaller = replay_cache(trace, EvictionPolicy.LRU, num_blocks).hit_tokens
    larger = replay_cache(trace, EvictionPolicy.LRU, num_blocks + 1).hit_tokens
    assert all(few <= many for few, many in zip(smaller, larger, strict=True))


@QUICK
@given(paths=PATHS)
def test_an_unlimited_cache_is_the_same_for_every_policy(paths):
    trace = make_trace(paths)
    enough = sum(map(len, paths))
    assert len({replay_cache(trace, policy, enough).hit_tokens for policy in EvictionPolicy}) == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(trace=timed_traces(), setup=setups())
def test_timed_runs_hit_whole_blocks_that_an_unlimited_cache_would_hit_too(trace, setup):
    result = simulate(trace, setup)
    assert len(result.outcomes) + len(result.refused) == len(trace)
    shared = dict(zip((r.request_id for r in trace.requests), range(len(trace)), strict=True))
    for outcome in result.outcomes:
        request = trace.requests[shared[outcome.request_id]]
        assert outcome.num_cached_tokens % BLOCK == 0
        assert outcome.num_cached_tokens < request.num_prompt_tokens
        assert outcome.num_output_tokens == request.num_output_tokens
        assert 0 <= outcome.queue_s <= outcome.ttft_s <= outcome.e2e_s
        ids = set(request.hash_ids[: outcome.num_cached_tokens // BLOCK])
        others = {i for other in trace.requests if other is not request for i in other.hash_ids}
        assert ids <= others, "a hit on blocks that nobody else has"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(trace=timed_traces(), clients=st.sampled_from([None, 2]))
def test_nobody_is_preempted_when_everything_fits(trace, clients):
    blocks = sum(-(-(r.num_prompt_tokens + r.num_output_tokens) // BLOCK) for r in trace.requests)
    setup = SimulationSetup(
        cost=COST,
        num_blocks=(blocks,),
        max_model_len=4096,
        block_size=BLOCK,
        scheduler=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=32),
        num_clients=clients,
    )
    result = simulate(trace, setup)
    assert result.num_preemptions == 0 and not result.refused
    tight = replace(setup, num_blocks=(max(12, blocks // 3),))
    assert len(simulate(trace, tight).outcomes) + len(simulate(trace, tight).refused) == len(trace)
