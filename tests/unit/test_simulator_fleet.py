"""Arrivals, closed loops, routing and refusals, with step times one can add up by hand."""

import pytest

from kvasir.core.errors import ConfigError
from kvasir.scheduling.config import SchedulerConfig
from kvasir.simulator.arrival_source import ClosedLoop
from kvasir.simulator.eviction import EvictionPolicy
from kvasir.simulator.routing import FleetShape, Routing
from kvasir.simulator.simulate import SimulationSetup, simulate
from kvasir.simulator.step_cost import FittedStepCost
from kvasir.workload.traces.trace import Trace, TraceRequest

SECOND_A_STEP = FittedStepCost(per_step_s=1.0, per_token_s=0.0, per_sequence_s=0.0, per_pair_s=0.0, per_read_s=0.0)


def request(name, arrival_s=0.0, prompt=16, output=1, ids=(), **more):
    return TraceRequest(
        request_id=name, arrival_s=arrival_s, num_prompt_tokens=prompt, num_output_tokens=output, hash_ids=ids, **more
    )


def trace_of(*requests, block=16):
    return Trace(name="hand", requests=requests, hash_block_size=block)


def setup_of(**changes):
    settings = {
        "cost": SECOND_A_STEP,
        "num_blocks": (64,),
        "max_model_len": 512,
        "scheduler": SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8),
    }
    return SimulationSetup(**(settings | changes))


def outcomes(trace, setup):
    return {outcome.request_id: outcome for outcome in simulate(trace, setup).outcomes}


def test_a_lone_request_by_hand():
    """150 prompt tokens at 64 a step: three steps to the first token, then one each."""
    found = outcomes(trace_of(request("a", 5.0, prompt=150, output=4)), setup_of())["a"]
    assert (found.queue_s, found.ttft_s, found.e2e_s) == (0.0, 3.0, 6.0)
    assert found.timing.tpot_s == 1.0


def test_who_arrives_during_a_step_is_taken_in_at_its_end():
    found = outcomes(trace_of(request("a", 0.0, output=3), request("b", 0.25)), setup_of())
    assert (found["b"].queue_s, found["b"].ttft_s) == (0.75, 1.75)


def test_seats_make_a_queue():
    setup = setup_of(scheduler=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=1))
    found = outcomes(trace_of(request("a", output=5), request("b")), setup)
    assert (found["a"].e2e_s, found["b"].queue_s, found["b"].ttft_s) == (5.0, 5.0, 6.0)


def test_a_shared_prefix_is_computed_once():
    setup = setup_of(scheduler=SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=8))
    found = outcomes(
        trace_of(request("a", prompt=70, ids=(1, 2, 3, 4)), request("b", 10.0, prompt=80, ids=(1, 2, 3, 4, 5))), setup
    )
    assert (found["a"].num_cached_tokens, found["b"].num_cached_tokens) == (0, 64)
    assert (found["a"].ttft_s, found["b"].ttft_s) == (5.0, 1.0)
    off = outcomes(
        trace_of(request("a", ids=(1,)), request("b", 9.0, prompt=33, ids=(1, 2))),
        setup_of(enable_prefix_caching=False),
    )
    assert off["b"].num_cached_tokens == 0


def test_blocks_finer_and_coarser_than_the_trace():
    """Ids of 64 tokens: caches of 16, 64 and 128 tokens a block find what fits their blocks."""
    trace = trace_of(request("a", prompt=200, ids=(1, 2, 3)), request("b", 20.0, prompt=230, ids=(1, 2, 3)), block=64)
    hits = {size: outcomes(trace, setup_of(block_size=size))["b"].num_cached_tokens for size in (16, 64, 128)}
    assert hits == {16: 192, 64: 192, 128: 128}
    with pytest.raises(ConfigError, match="do not line up"):
        simulate(trace, setup_of(block_size=48))


def test_refused_requests_are_counted_with_their_reason():
    setup = setup_of(num_blocks=(4,), max_model_len=100)
    result = simulate(trace_of(request("long", prompt=120), request("large", prompt=90), request("fits")), setup)
    assert {refusal.request_id: refusal.code for refusal in result.refused} == {
        "long": "context_length_exceeded",
        "large": "kv_capacity_exceeded",
    }
    assert [outcome.request_id for outcome in result.outcomes] == ["fits"]


def test_a_full_queue_refuses():
    setup = setup_of(scheduler=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=1, max_waiting=1))
    result = simulate(trace_of(request("a"), request("b"), request("c")), setup)
    assert [refusal.code for refusal in result.refused] == ["overloaded"] * 2


def test_a_closed_loop_sends_when_it_is_answered():
    found = outcomes(trace_of(*(request(f"r{i}", 99.0, output=2) for i in range(4))), setup_of(num_clients=2))
    assert [found[f"r{i}"].arrival_s for i in range(4)] == [0.0, 0.0, 2.0, 2.0]
    assert all(outcome.e2e_s == 2.0 for outcome in found.values())


def test_sessions_follow_their_own_answers_and_think():
    trace = trace_of(
        request("s1.0", output=2, session_id="s1"),
        request("s2.0", output=1, session_id="s2"),
        request("s1.1", output=1, session_id="s1", think_s=10.0),
    )
    found = outcomes(trace, setup_of(num_clients=1))
    assert (found["s1.0"].arrival_s, found["s1.1"].arrival_s, found["s2.0"].arrival_s) == (0.0, 12.0, 13.0)


def test_a_refused_client_sends_its_next_at_once():
    trace = trace_of(request("huge", prompt=600), request("next"))
    setup = setup_of(num_clients=1)
    result = simulate(trace, setup)
    assert [refusal.request_id for refusal in result.refused] == ["huge"]
    assert result.outcomes[0].arrival_s == 0.0


def test_the_loop_knows_when_nothing_more_comes():
    loop = ClosedLoop(trace_of(request("a")), num_clients=3)
    assert loop.next_s() == 0.0
    assert loop.take().request_id == "a"
    assert loop.next_s() is None
    loop.on_end("a", 1.0)
    assert loop.next_s() is None


def placed(trace, **fleet):
    result = simulate(trace, setup_of(fleet=FleetShape(**fleet)))
    return {outcome.request_id: outcome.instance_id for outcome in result.outcomes}


def test_round_robin_takes_turns():
    trace = trace_of(*(request(f"r{i}", float(i)) for i in range(5)))
    found = placed(trace, num_instances=2, routing=Routing.ROUND_ROBIN)
    assert [found[f"r{i}"] for i in range(5)] == [0, 1, 0, 1, 0]


def test_least_loaded_counts_unanswered_prompt_tokens():
    trace = trace_of(request("big", 0.0, prompt=300, output=50), request("s1", 1.0, output=50), request("s2", 2.0))
    found = placed(trace, num_instances=2, routing=Routing.LEAST_LOADED)
    assert found == {"big": 0, "s1": 1, "s2": 1}


def test_prefix_routing_goes_where_the_prefix_is():
    trace = trace_of(
        request("a1", 0.0, prompt=48, ids=(1, 2, 3), output=2),
        request("b1", 0.5, prompt=48, ids=(7, 8, 9)),
        request("b2", 30.0, prompt=64, ids=(7, 8, 9, 10)),
        request("a2", 40.0, prompt=64, ids=(1, 2, 3, 4)),
    )
    found = placed(trace, num_instances=2, routing=Routing.PREFIX)
    assert found == {"a1": 0, "b1": 1, "b2": 1, "a2": 0}


def test_prefix_routing_keeps_sessions_without_ids_together():
    trace = trace_of(
        request("x1", 0.0, session_id="x", output=3),
        request("y1", 0.5, session_id="y"),
        request("y2", 30.0, session_id="y"),
        block=0,
    )
    assert placed(trace, num_instances=2, routing=Routing.PREFIX) == {"x1": 0, "y1": 1, "y2": 1}


def test_prefix_routing_does_not_follow_into_a_crowd():
    """The first instance holds the prefix and 30,000 tokens of work; the other is idle."""
    busy = request("busy", 0.0, prompt=30_000, ids=tuple(range(1875)), output=400)
    follower = request("follower", 1.0, prompt=64, ids=(0, 1, 2, 3))
    result = simulate(
        trace_of(busy, follower),
        setup_of(
            num_blocks=(4000,),
            max_model_len=40_000,
            fleet=FleetShape(num_instances=2, routing=Routing.PREFIX),
        ),
    )
    assert {o.request_id: o.instance_id for o in result.outcomes} == {"busy": 0, "follower": 1}


def test_two_pools_by_length():
    trace = trace_of(*(request(f"r{i}", float(i), prompt=20 if i % 2 else 200) for i in range(6)))
    found = placed(trace, num_instances=3, num_long=1, length_cut=100)
    assert {found[f"r{i}"] for i in (0, 2, 4)} == {2}
    assert {found[f"r{i}"] for i in (1, 3, 5)} <= {0, 1}


@pytest.mark.parametrize(
    "shape",
    [{"num_instances": 0}, {"num_instances": 2, "num_long": 2, "length_cut": 9}, {"num_instances": 2, "num_long": 1},
     {"length_cut": 9}],
)  # fmt: skip
def test_impossible_fleets_are_refused(shape):
    with pytest.raises(ConfigError):
        FleetShape(**shape)


def test_belady_needs_one_instance_and_known_times():
    trace = trace_of(request("a", ids=(1,)))
    for changes in ({"fleet": FleetShape(num_instances=2)}, {"num_clients": 1}):
        with pytest.raises(ConfigError, match="belady"):
            simulate(trace, setup_of(policy=EvictionPolicy.BELADY, **changes))


def test_belady_beats_lru_where_the_future_decides():
    """Six prompts in turn through a pool that holds five: the worst case of LRU."""
    rounds = [
        request(f"r{i}", 20.0 * i, prompt=48, ids=(10 * (i % 6), 10 * (i % 6) + 1, 10 * (i % 6) + 2)) for i in range(24)
    ]
    rates = {
        policy: simulate(trace_of(*rounds), setup_of(num_blocks=(16,), policy=policy)).hit_rate()
        for policy in EvictionPolicy
    }
    assert rates[EvictionPolicy.LRU] + 0.1 < rates[EvictionPolicy.BELADY]
    assert rates[EvictionPolicy.FIFO] <= rates[EvictionPolicy.BELADY]
