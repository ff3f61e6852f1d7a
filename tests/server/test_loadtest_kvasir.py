"""Kvasir's own server under its own load test: routes, chats, traces, and the server's figures beside the client's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvasir.cli.main import make_app
from kvasir.loadtest.settings import WorkloadKind
from kvasir.loadtest.target import Api
from kvasir.workload.latency import Slo
from kvasir.workload.lengths import LengthRange
from live_server import LiveServer
from loadtest_setup import fixed, make_settings, run_load


@pytest.fixture(autouse=True)
def left_idle(live_server: LiveServer) -> Iterator[None]:
    yield
    live_server.wait_idle()


def test_completions(live_server: LiveServer) -> None:
    """Lengths are exact, the server's usage is believed, and its own counters agree with what the client saw."""
    before = {name: live_server.metric(f"vllm:{name}_total") for name in ("prompt_tokens", "generation_tokens")}
    settings = make_settings(
        live_server.url,
        num_sessions=6,
        max_concurrency=3,
        prompt_tokens=fixed(40),
        output_tokens=LengthRange(low=4, high=12),
        slo=Slo(ttft_s=60.0, tpot_s=60.0),
        metrics_interval_s=0.1,
    )
    data = run_load(settings)[1]
    assert data["completed"] == data["goodput"]["good_requests"] == 6
    assert data["input_lens"] == [40] * 6
    assert data["output_tokens_counted_by"] == data["input_tokens_counted_by"] == "usage"
    assert 0 < data["mean_ttft_ms"] < data["mean_e2el_ms"]
    assert data["max_in_flight"] <= 3
    # The preflight's request has 16 tokens in, 2 out.
    assert live_server.metric("vllm:prompt_tokens_total") - before["prompt_tokens"] == 6 * 40 + 16
    generated = live_server.metric("vllm:generation_tokens_total") - before["generation_tokens"]
    assert generated == data["total_output_tokens"] + 2
    (seen,) = data["server"]
    assert 0 < seen["peak_kv_usage"] <= 1
    assert seen["kv_pool_bytes"] > 0


def test_a_chat_finds_its_past_in_the_cache(live_server: LiveServer) -> None:
    settings = make_settings(
        live_server.url,
        kind=WorkloadKind.CHAT,
        num_turns=3,
        num_sessions=1,
        prompt_tokens=fixed(48),
        output_tokens=fixed(8),
        seed=11,
    )
    data = run_load(settings)[1]
    assert data["completed"] == 3
    turns = data["turns"]
    assert turns[0]["mean_input_tokens"] < turns[1]["mean_input_tokens"] < turns[2]["mean_input_tokens"]
    assert turns[2]["mean_cached_tokens"] >= turns[1]["mean_input_tokens"] - 32
    assert data["prefix_hit_rate"] > 0.3


def test_words_come_close_on_a_real_tokenizer(live_server: LiveServer) -> None:
    data = run_load(make_settings(live_server.url, api=Api.CHAT, prompt_tokens=fixed(160), num_sessions=3))[1]
    assert data["completed"] == 3
    assert all(abs(length - 160) <= 16 for length in data["input_lens"])


def test_a_trace_hits_where_its_blocks_repeat(live_server: LiveServer, tmp_path: Path) -> None:
    lines = [
        {"timestamp": 1500 * i, "input_length": 100, "output_length": 4, "hash_ids": ids}
        for i, ids in enumerate(([1, 2, 3, 4], [1, 2, 3, 9], [7, 8, 9, 10], [1, 2, 3, 4]))
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    settings = make_settings(
        live_server.url,
        kind=WorkloadKind.TRACE,
        path=path,
        hash_block_size=32,
        uses_recorded_times=True,
        num_sessions=None,
        speed=3.0,
        seed=5,
    )
    result, data = run_load(settings)
    records = sorted(result.records, key=lambda record: record.place.session)
    assert [record.num_output_tokens for record in records] == [4] * 4
    assert [record.num_cached_tokens for record in records] == [0, 96, 0, 96]
    assert [round(record.place.planned_s, 3) for record in records] == [0.0, 0.5, 1.0, 1.5]
    assert data["request_rate"] == "trace"


def test_refusals_of_the_server_are_failures(live_server: LiveServer) -> None:
    """516 tokens in a context of 512: what the server says is what the person reads."""
    settings = make_settings(
        live_server.url, num_sessions=2, prompt_tokens=fixed(500), output_tokens=fixed(16), max_context=4096
    )
    data = run_load(settings)[1]
    assert (data["completed"], data["failed"]) == (0, 2)
    assert data["failures"][0]["kind"] == "http 400"
    assert "512" in data["failures"][0]["example"]


def test_the_command(live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--num-prompts", "3", "--input-tokens", "24", "--output-tokens", "150", "--html", "r.html", "--json"]
    done = CliRunner().invoke(make_app(["bench"]), ["bench", "serve", "--base-url", live_server.url, *options])
    assert done.exit_code == 0, done.output
    data: dict[str, Any] = json.loads(done.stdout)
    assert (data["completed"], data["total_output_tokens"]) == (3, 450)
    assert data["server"][0]["peak_running"] >= 1
    assert "KV cache in use" in (tmp_path / "r.html").read_text()
    assert ", context 512 at http" in done.stderr
