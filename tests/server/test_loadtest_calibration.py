"""The instrument on a server whose every delay is known: what the load test reports is what the server's log says.

The server writes down the clock at every chunk it sends, and the clock is this machine's: so the error of a measured
time is known, whatever else keeps the machine busy.
"""

import itertools
from typing import Any

import numpy as np
import pytest

from kvasir.loadtest.record import CountedBy, Record
from kvasir.loadtest.settings import WorkloadKind
from kvasir.loadtest.target import Api
from kvasir.workload.arrivals import ArrivalProcess
from kvasir.workload.latency import Slo
from kvasir.workload.lengths import LengthRange
from loadtest_setup import fixed, make_settings, run_load
from scripted_server import Running, scripted_server

TYPICAL_MS, WORST_MS = 4.0, 120.0
"""By how much a time may be off: typically, and once on a machine where other tests run."""


@pytest.fixture(scope="module")
def server() -> Any:
    with scripted_server() as running:
        yield running


def in_order(server: Running, run: str, records: list[Record]) -> list[tuple[Record, dict[str, Any]]]:
    """Records with the server's entries of a load that had one request at a time."""
    entries = [entry for entry in server.log() if entry["body"].get("run") == run and entry["body"]["max_tokens"] > 2]
    assert len(entries) == len(records)
    return list(zip(sorted(records, key=lambda record: record.sent_s), entries, strict=True))


def errors_ms(measured_s: list[float], true_s: list[float]) -> np.ndarray:
    return 1000 * np.abs(np.array(measured_s) - np.array(true_s))


def test_every_time_is_the_servers_own(server: Running) -> None:
    """TTFT, gaps and whole latency, request by request, against the server's clock."""
    script = {"ttft_s": 0.06, "gaps_s": [0.01, 0.03, 0.02], "gap_s": 0.015}
    settings = make_settings(server.url, script, extra={"run": "times"}, num_sessions=12, max_concurrency=1)
    result, data = run_load(settings)
    pairs = in_order(server, "times", result.records)
    assert data["completed"] == 12
    ttfts, gaps, whole = [], [], []
    for record, entry in pairs:
        sent = entry["sent_s"]
        assert len(record.chunk_times_s) == len(sent) == 8
        ttfts.append((record.timing.ttft_s, sent[0] - entry["received_s"]))
        gaps += list(zip(record.itls_s, np.diff(sent), strict=True))
        whole.append((record.timing.e2e_s, entry["finished_s"] - entry["received_s"]))
        assert record.timing.ttft_s > 0.06
        assert record.timing.tpot_s == pytest.approx((record.timing.e2e_s - record.timing.ttft_s) / 7)
    for pairs_s in (ttfts, gaps, whole):
        off = errors_ms(*map(list, zip(*pairs_s, strict=True)))
        assert np.median(off) < TYPICAL_MS
        assert off.max() < WORST_MS


def test_summary_is_numpys_of_the_same_requests(server: Running) -> None:
    """The keys of ``vllm bench serve``, recomputed with its definitions from the lists in the same file."""
    script = {"ttft_s": 0.02, "gap_s": 0.005}
    settings = make_settings(
        server.url, script, num_sessions=30, output_tokens=LengthRange(low=1, high=24), percentiles=(50.0, 90.0, 99.0)
    )
    _, data = run_load(settings)
    ttfts, outs = np.array(data["ttfts"]), np.array(data["output_lens"])
    e2els = ttfts + [sum(gaps) for gaps in data["itls"]]
    # The chunk with the finish reason comes right after the last with text.
    np.testing.assert_allclose(data["e2els"], e2els, atol=0.05)
    e2els = np.array(data["e2els"])
    several = outs > 1
    assert not several.all(), "a seed with a one-token answer is wanted"
    latencies = {
        "ttft": ttfts,
        "tpot": ((e2els - ttfts)[several]) / (outs[several] - 1),
        "itl": np.concatenate(data["itls"]),
        "e2el": e2els,
    }
    for name, values in latencies.items():
        statistics = {"mean": values.mean(), "median": np.median(values), "std": values.std()}
        statistics |= {f"p{q}": np.percentile(values, q) for q in (50, 90, 99)}
        for statistic, value in statistics.items():
            assert data[f"{statistic}_{name}_ms"] == pytest.approx(1000 * value, rel=1e-3, abs=2e-3), (statistic, name)
    assert data["total_output_tokens"] == outs.sum()
    assert data["total_input_tokens"] == 30 * 16
    assert data["output_throughput"] == pytest.approx(outs.sum() / data["duration"])
    assert data["request_throughput"] == pytest.approx(30 / data["duration"])
    assert data["total_token_throughput"] == pytest.approx((outs.sum() + 480) / data["duration"])
    last = max(start + latency for start, latency in zip(data["start_times"], data["e2els"], strict=True))
    assert data["duration"] == pytest.approx(last, abs=1e-5)
    assert data["max_in_flight"] == 30
    assert 0 < data["max_output_tokens_per_s"] <= outs.sum()


VLLM_KEYS = """duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput
output_throughput total_token_throughput max_output_tokens_per_s max_concurrent_requests input_lens output_lens ttfts
itls generated_texts errors date backend model_id tokenizer_id num_prompts request_rate burstiness max_concurrency"""


def test_all_keys_of_vllm_are_there(server: Running) -> None:
    _, data = run_load(make_settings(server.url, {}, num_sessions=3))
    names = {
        f"{statistic}_{name}_ms"
        for statistic in ("mean", "median", "std", "p99")
        for name in ("ttft", "tpot", "itl", "e2el")
    }
    assert set(VLLM_KEYS.split()) | names <= data.keys()
    assert data["request_goodput"] is None
    assert data["request_rate"] == "inf"
    assert "first token is left out" in data["definitions"]["tpot"]
    assert data["generated_texts"][0] == "w0 w1 w2 w3 w4 w5 w6 w7 "


def test_goodput_counts_those_that_meet_every_objective(server: Running) -> None:
    slow = run_load(make_settings(server.url, {"gap_s": 0.06}, slo=Slo(tpot_s=0.04), num_sessions=6))[1]
    fast = run_load(make_settings(server.url, {"gap_s": 0.002}, slo=Slo(tpot_s=0.04, ttft_s=1.0), num_sessions=6))[1]
    missed = run_load(make_settings(server.url, {"ttft_s": 0.2}, slo=Slo(tpot_s=0.04, ttft_s=0.1), num_sessions=6))[1]
    assert slow["goodput"]["good_requests"] == 0
    assert slow["request_goodput"] == 0.0
    assert fast["goodput"]["good_requests"] == 6
    assert fast["request_goodput"] == pytest.approx(6 / fast["duration"])
    assert missed["goodput"] == {"objectives_ms": "ttft:100 tpot:40", "good_requests": 0, "met": {"ttft": 0, "tpot": 6}}


def test_a_role_is_not_a_token(server: Running) -> None:
    """Servers that greet at once would otherwise have no time to first token at all."""
    script = {"ttft_s": 0.15, "greets_early": True}
    result, _ = run_load(make_settings(server.url, script, api=Api.CHAT, num_sessions=2))
    assert all(record.timing.ttft_s > 0.14 for record in result.records)
    assert all(len(record.chunk_times_s) == 8 for record in result.records)


def test_several_tokens_a_chunk(server: Running) -> None:
    """Tokens are the server's count; ITL stays between chunks, TPOT is per token."""
    script = {"tokens_per_chunk": 4, "gap_s": 0.04}
    result, data = run_load(make_settings(server.url, script, output_tokens=fixed(16), num_sessions=4))
    assert data["total_output_tokens"] == 64
    assert data["tokens_per_chunk"] == 4.0
    assert data["output_tokens_counted_by"] == "usage"
    assert data["mean_itl_ms"] > 39
    assert data["mean_tpot_ms"] == pytest.approx(data["mean_itl_ms"] * 3 / 15, rel=0.3)
    assert {len(record.itls_s) for record in result.records} == {3}


def test_without_usage_chunks_are_counted_and_it_is_said(server: Running) -> None:
    script = {"hides_usage": True, "tokens_per_chunk": 2}
    result, data = run_load(make_settings(server.url, script, num_sessions=3))
    assert data["output_tokens_counted_by"] == "chunks"
    assert data["input_tokens_counted_by"] == "plan"
    assert data["output_lens"] == [4, 4, 4]
    assert data["input_lens"] == [16, 16, 16]
    assert {record.output_counted_by for record in result.records} == {CountedBy.CHUNKS}


def test_a_server_that_knows_no_usage_is_asked_without(server: Running) -> None:
    _, data = run_load(make_settings(server.url, {"refuses": ["stream_options"]}, num_sessions=3))
    assert data["completed"] == 3
    assert data["output_tokens_counted_by"] == "chunks"


def test_cached_tokens(server: Running) -> None:
    _, data = run_load(make_settings(server.url, {"cached_share": 0.25}, num_sessions=4))
    assert data["total_cached_tokens"] == 16
    assert data["prefix_hit_rate"] == 0.25
    assert data["cached_lens"] == [4] * 4


def test_arrivals_are_kept(server: Running) -> None:
    """The server sees requests when the process says, not when answers allow: the load is open."""
    arrivals = ArrivalProcess(rate=40.0, burstiness=0.5, seed=3)
    settings = make_settings(server.url, {"ttft_s": 0.3}, extra={"run": "arrivals"}, arrivals=arrivals, num_sessions=40)
    result, data = run_load(settings)
    planned = arrivals.times_s(40)
    assert planned[-1] == pytest.approx(1.0)
    records = sorted(result.records, key=lambda record: record.place.session)
    late = np.array([record.sent_s - record.place.planned_s for record in records])
    assert [record.place.planned_s for record in records] == planned
    assert late.min() >= 0
    assert np.median(late) < 0.02
    seen = [entry["received_s"] for entry in server.log() if entry["body"].get("run") == "arrivals"][1:]
    assert errors_ms(list(np.diff(sorted(seen))), list(np.diff(planned))).mean() < 15
    assert data["request_rate"] == 40.0
    assert data["burstiness"] == 0.5


def test_a_closed_loop_keeps_its_number(server: Running) -> None:
    settings = make_settings(server.url, {"gap_s": 0.01}, num_sessions=20, max_concurrency=5)
    _, data = run_load(settings)
    assert data["max_in_flight"] == 5
    assert data["max_concurrency"] == 5
    # Twenty requests of 70 ms, five at a time.
    assert 0.28 < data["duration"] < 2.0


def test_a_chat_grows_and_its_turns_are_told_apart(server: Running) -> None:
    settings = make_settings(
        server.url,
        {"ttft_s": 0.01, "cached_share": 0.5},
        extra={"run": "chat"},
        kind=WorkloadKind.CHAT,
        num_turns=3,
        system_tokens=10,
        think_s=0.05,
        num_sessions=4,
        max_concurrency=2,
    )
    result, data = run_load(settings)
    assert [turn["turn"] for turn in data["turns"]] == [1, 2, 3]
    assert [turn["num_requests"] for turn in data["turns"]] == [4, 4, 4]
    lengths = [turn["mean_input_tokens"] for turn in data["turns"]]
    assert lengths[0] < lengths[1] < lengths[2]
    assert data["turns"][2]["mean_cached_tokens"] == pytest.approx(lengths[2] / 2, abs=1)
    assert data["turns"][1]["median_ttft_ms"] > 10
    asked = [entry["body"]["messages"] for entry in server.log() if entry["body"].get("run") == "chat"]
    third = next(messages for messages in asked if len(messages) == 6)
    assert [message["role"] for message in third] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert third[2]["content"] == "w0 w1 w2 w3 w4 w5 w6 w7 ", "the reply is the server's own"
    assert third[:4] in [messages for messages in asked if len(messages) == 4], "a turn is the one before, continued"
    by_session: dict[int, list[Record]] = {}
    for record in result.records:
        by_session.setdefault(record.place.session, []).append(record)
    for turns in by_session.values():
        for before, after in itertools.pairwise(turns):
            assert after.sent_s - before.end_s >= 0.05


def test_words_have_the_length_that_was_asked_for(server: Running) -> None:
    """The server counts a word as a token and charges three for a message; the preflight finds that out."""
    _, data = run_load(make_settings(server.url, {}, api=Api.CHAT, prompt_tokens=fixed(200), num_sessions=3))
    assert data["input_lens"] == [200, 200, 200]


def test_gauges_are_sampled(server: Running) -> None:
    settings = make_settings(server.url, {"gap_s": 0.04}, metrics_interval_s=0.05, num_sessions=16)
    result, data = run_load(settings)
    (seen,) = data["server"]
    assert seen["url"] == f"{server.url}/metrics"
    assert seen["peak_running"] == 16
    assert seen["peak_kv_usage"] == 16 / 64
    assert seen["kv_pool_bytes"] == 1 << 20
    assert seen["peak_kv_bytes"] == 1 << 18
    assert seen["peak_memory_bytes"] == 5e8
    assert seen["prefix_hit_rate"] == pytest.approx(0.4)
    assert len(seen["samples"]) >= 4
    assert result.runs[0].gauges is not None


def test_a_server_without_gauges() -> None:
    with scripted_server(has_metrics=False) as server:
        _, data = run_load(make_settings(server.url, {}, metrics_interval_s=0.05, num_sessions=2))
        assert data["server"] == []


def test_repetitions_are_pooled_and_kept_apart(server: Running) -> None:
    settings = make_settings(
        server.url, {"ttft_s": 0.02}, extra={"run": "twice"}, num_runs=2, num_sessions=5, resets_prefix_cache=True
    )
    result, data = run_load(settings)
    assert data["completed"] == data["num_prompts"] == 10
    assert [run["completed"] for run in data["runs"]] == [5, 5]
    assert data["duration"] == pytest.approx(sum(run["duration"] for run in data["runs"]))
    assert data["run_numbers"] == [0] * 5 + [1] * 5
    assert len(result.runs) == 2
    assert server.num_resets() == 2
    prompts = [str(entry["body"]["prompt"]) for entry in server.log() if entry["body"].get("run") == "twice"]
    assert len(set(prompts[1:])) == 10, "no repetition finds its prompts in the prefix cache"


def test_warm_up_is_not_measured(server: Running) -> None:
    settings = make_settings(server.url, {}, extra={"run": "warm"}, num_warmups=3, num_sessions=2)
    _, data = run_load(settings)
    assert data["completed"] == 2
    asked = [entry["body"]["prompt"] for entry in server.log() if entry["body"].get("run") == "warm"]
    assert len(asked) == 1 + 3 + 2  # preflight, warm-up, load
    assert len({str(prompt) for prompt in asked}) == 6


def test_time_can_be_up(server: Running) -> None:
    settings = make_settings(server.url, {"gap_s": 0.01}, num_sessions=1000, max_concurrency=2, max_duration_s=0.5)
    _, data = run_load(settings)
    assert data["end_reason"] == "time is up"
    assert data["is_complete"]
    assert 4 <= data["completed"] <= 20
    assert data["not_sent"] == 1000 - data["completed"]
    assert data["aborted"] == data["failed"] == 0


def test_the_client_costs_little_at_64_streams(server: Running) -> None:
    """Real HTTP, 64 streams at once of 100 chunks, 20 ms apart: CPU time of this process per chunk, and how far the
    arrival of a chunk is from its sending by the server's clock."""
    script = {"gap_s": 0.02}
    settings = make_settings(
        server.url, script, extra={"run": "cost"}, num_sessions=64, output_tokens=fixed(100), prompt_tokens=fixed(64)
    )
    result, data = run_load(settings)
    assert data["max_in_flight"] == 64
    num_chunks = 64 * 100
    cpu_us_per_chunk = 1e6 * data["client"]["cpu_share"] * data["duration"] / num_chunks
    sent = np.sort([t for entry in server.log() if entry["body"].get("run") == "cost" for t in entry["sent_s"]][2:])
    received = np.sort([time_s for record in result.records for time_s in record.chunk_times_s])
    # The load's zero is not the server's: what is known is how much longer a chunk took than the fastest one.
    lag_ms = 1000 * (received - sent)
    lag_ms -= lag_ms.min()
    print(f"\n64 streams: {cpu_us_per_chunk:.0f} us of CPU a chunk, {np.median(lag_ms):.2f} ms behind the fastest")
    assert len(sent) == len(received) == num_chunks
    assert cpu_us_per_chunk < 100
    assert np.median(lag_ms) < 10
