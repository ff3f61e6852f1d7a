"""From records to figures: every definition on numbers small enough to check by hand."""

import asyncio

import pytest

from kvasir.loadtest.gauges import Gauge, GaugeSample, ServerGauges, read_gauges, read_pool_bytes
from kvasir.loadtest.measures import in_flight, measure, tokens_by_second
from kvasir.loadtest.record import Failure, FailureKind, Place
from kvasir.loadtest.runner import EndReason, Stop
from kvasir.loadtest.self_watch import ClientCost, SelfWatch
from kvasir.workload.latency import Slo
from loadtest_setup import record

QS = (50.0, 90.0, 99.0)


THREE = (
    record(0.0, [0.5, 0.7, 0.9]),
    record(0.2, [1.2]),
    record(1.0, [1.5, 2.5], end_s=2.6, num_output_tokens=4, num_cached_tokens=5),
)


def test_definitions_by_hand() -> None:
    found = measure([(THREE, 2.6)], Slo(ttft_s=0.6, tpot_s=0.3), QS)
    assert (
        found.ttft_s is not None and found.tpot_s is not None and found.itl_s is not None and found.e2el_s is not None
    )
    assert found.ttft_s.mean == pytest.approx((0.5 + 1.0 + 0.5) / 3)
    # A single token has no time per later token.
    assert found.tpot_s.num_values == 2
    assert found.tpot_s.mean == pytest.approx((0.4 / 2 + 1.1 / 3) / 2)
    assert found.itl_s.mean == pytest.approx((0.2 + 0.2 + 1.0) / 3)
    assert found.e2el_s.max == pytest.approx(1.6)
    assert (found.num_prompt_tokens, found.num_output_tokens) == (30, 8)
    assert found.output_throughput == pytest.approx(8 / 2.6)
    assert found.total_token_throughput == pytest.approx(38 / 2.6)
    # The first meets both; the second's TTFT is late; the third's TPOT is 0.367.
    assert found.goodput is not None
    assert (found.goodput.num_good, found.goodput.met) == (1, {"ttft": 2, "tpot": 2})
    assert found.request_goodput == pytest.approx(1 / 2.6)
    assert found.num_cached_tokens == 5
    assert found.prefix_hit_rate == pytest.approx(5 / 30)
    assert found.tokens_per_chunk == pytest.approx(8 / 6)
    assert found.max_in_flight == 2
    # As vllm bench serve counts: in second 0 two, in second 1 (0.9 ends before) the second and third.
    assert found.max_in_flight_by_second == 2
    assert found.turns == ()


def test_tokens_by_second_and_in_flight() -> None:
    assert tokens_by_second(THREE) == [3.0, 1.0 + 2.0, 2.0]
    assert in_flight(THREE[:2]) == [(0.0, 1), (0.2, 2), (0.9, 1), (1.2, 0)]
    back_to_back = [record(0.1 * i, [0.1 * i + 0.09]) for i in range(5)]
    measures = measure([(back_to_back, 0.5)], Slo(), QS)
    assert (measures.max_in_flight, measures.max_in_flight_by_second) == (1, 5)


def test_failures_are_no_latencies() -> None:
    failed = record(0.0, [0.1], end_s=0.3, failure=Failure(FailureKind.HTTP, "busy", 429))
    same = record(0.0, [0.1], end_s=0.3, failure=Failure(FailureKind.HTTP, "still busy", 429))
    aborted = record(0.0, [0.1], end_s=9.0, failure=Failure(FailureKind.ABORTED, "stopped"))
    found = measure([((*THREE, failed, same, aborted), 2.6)], Slo(), QS)
    assert (found.num_completed, found.num_failed, found.num_aborted) == (3, 2, 1)
    assert [(one.label, one.count, one.example) for one in found.failures] == [("http 429", 2, "busy")]
    assert found.num_output_tokens == 8
    assert found.ttft_s is not None and found.ttft_s.num_values == 3
    assert tokens_by_second((*THREE, failed)) == tokens_by_second(THREE)


def test_nothing_measures_nothing() -> None:
    found = measure([((), 0.0)], Slo(ttft_s=1.0), QS)
    assert (found.num_completed, found.output_throughput, found.ttft_s) == (0, 0.0, None)
    assert found.request_goodput == 0.0
    assert found.prefix_hit_rate is None


def test_turns_are_kept_apart() -> None:
    records = [
        record(0.0, [0.1 * turn], place=Place(session=session, turn=turn, planned_s=0.0), num_prompt_tokens=100 * turn)
        for session in range(3)
        for turn in (1, 2)
    ]
    turns = measure([(records, 1.0)], Slo(), QS).turns
    assert [(turn.turn, turn.num_requests, turn.mean_prompt_tokens) for turn in turns] == [(1, 3, 100.0), (2, 3, 200.0)]
    assert turns[1].ttft_s.mean == pytest.approx(0.2)
    assert turns[1].mean_cached_tokens is None


PAGE = """
# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.25
vllm:gpu_cache_usage_perc{engine="0"} 0.9
vllm:prefix_cache_hits_total{engine="0"} 1e+06
vllm:cache_config_info{block_size="16",num_bytes="4096",x="a\\"b"} 1.0
vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 7
process_resident_memory_bytes 12.5
vllm:num_requests_waiting nonsense
"""


def test_metrics_pages() -> None:
    assert read_gauges(PAGE) == {
        Gauge.RUNNING: 7.0,
        Gauge.KV_USAGE: 0.375,
        Gauge.PREFIX_HITS: 1e6,
        Gauge.MEMORY_BYTES: 12.5,
    }
    assert read_pool_bytes(PAGE) == 4096
    assert read_gauges('sglang:num_running_reqs{tp="0"} 2\nsglang:token_usage 0.1\n') == {
        Gauge.RUNNING: 2.0,
        Gauge.KV_USAGE: 0.1,
    }
    assert read_gauges("llamacpp:requests_deferred 5\n") == {Gauge.WAITING: 5.0}
    assert read_gauges("<html>not metrics</html>") == {}
    assert read_pool_bytes('vllm:cache_config_info{block_size="16"} 1.0\n') is None


def test_counters_are_what_they_grew_by() -> None:
    samples = tuple(
        GaugeSample(time_s=float(i), values={Gauge.PREFIX_QUERIES: 100.0 + 50 * i, Gauge.PREFIX_HITS: 10.0 + 20 * i})
        for i in range(3)
    )
    gauges = ServerGauges(url="u", samples=samples)
    assert gauges.series(Gauge.PREFIX_QUERIES) == [(0.0, 0.0), (1.0, 50.0), (2.0, 100.0)]
    assert gauges.prefix_hit_rate == pytest.approx(0.4)
    assert gauges.peak(Gauge.RUNNING) is None
    assert ServerGauges(url="u").prefix_hit_rate is None


def test_the_watch_sees_a_blocked_loop() -> None:
    import time

    async def block() -> ClientCost:
        async with SelfWatch() as watch:
            for _ in range(10):
                await asyncio.sleep(0.03)
                time.sleep(0.05)
        return watch.cost

    cost = asyncio.run(block())
    assert cost.lag_p99_s > 0.02
    assert cost.is_late
    assert 0.0 < cost.cpu_share < 0.5


def test_the_first_reason_to_stop_counts() -> None:
    async def both() -> EndReason | None:
        stop = Stop()
        stop.set(EndReason.SERVER_GONE)
        stop.set(EndReason.INTERRUPTED)
        await stop.wait()
        return stop.reason

    assert asyncio.run(both()) is EndReason.SERVER_GONE
