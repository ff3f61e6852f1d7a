"""Servers that refuse, break, hang, vanish: everything is counted by kind, and what was measured is kept."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvasir.core.errors import ConfigError
from kvasir.loadtest.load_test import opened
from kvasir.loadtest.preflight import PreflightError
from kvasir.loadtest.result import BenchResult
from kvasir.loadtest.runner import EndReason
from kvasir.loadtest.settings import EndpointSettings, WorkloadKind
from kvasir.loadtest.target import Api, Target
from kvasir.workload.lengths import LengthRange
from loadtest_setup import fixed, make_settings, run_load
from scripted_server import scripted_server


@pytest.fixture(scope="module")
def server() -> Any:
    with scripted_server() as running:
        yield running


def faulty(server: Any, script: dict[str, Any], **given: Any) -> dict[str, Any]:
    """The result of a load whose preflight passes: the fault begins with the second request."""
    return run_load(make_settings(server.url, {"after": 1, **script}, num_sessions=6, **given))[1]


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ({"status": 503, "message": "queue is full"}, "http 503", "queue is full"),
        ({"status": 400, "message": "too long"}, "http 400", "too long"),
        ({"error_after": 3}, "error in the stream", "out of blocks"),
        ({"cut_after": 3}, "cut off", "in the middle of the response"),
        ({"is_no_stream": True}, "not an event stream", "whole answer"),
        ({"ends_early": True}, "cut off", "without a finish reason"),
        ({"says_nothing": True}, "no output", "without any choice"),
        ({"is_garbage": True}, "error in the stream", "not a chunk"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_failures_are_counted_by_kind(server: Any, script: dict[str, Any], kind: str, message: str) -> None:
    data = faulty(server, script, max_concurrency=2)
    assert data["completed"] == 0
    assert data["failed"] == 6
    assert not data["is_complete"]
    (failure,) = data["failures"]
    assert (failure["kind"], failure["count"]) == (kind, 6)
    assert message in failure["example"]
    assert all(error.startswith(kind) for error in data["errors"])
    assert data["output_lens"] == [0] * 6
    assert data["mean_ttft_ms"] is None


def test_good_requests_among_bad_ones(server: Any) -> None:
    data = run_load(make_settings(server.url, {"fails_every": 3}, num_sessions=12, max_concurrency=1))[1]
    assert data["completed"] + data["failed"] == 12
    assert data["failed"] == 4
    assert data["failures"][0]["kind"] == "http 429"
    assert sum(1 for error in data["errors"] if not error) == data["completed"]
    assert data["total_output_tokens"] == 8 * data["completed"]


def test_a_silent_server_runs_into_the_timeout(server: Any) -> None:
    data = faulty(server, {"is_silent": True}, timeout_s=0.3)
    assert data["failures"] == [{"kind": "timeout", "count": 6, "example": "no end after 0.3 s"}]


def test_a_conversation_ends_with_its_first_failure(server: Any) -> None:
    settings = make_settings(
        server.url, {"after": 2, "status": 500}, kind=WorkloadKind.CHAT, num_turns=4, num_sessions=3
    )
    data = run_load(settings)[1]
    assert (data["completed"], data["failed"], data["not_sent"]) == (0, 3, 9)


def test_a_kept_connection_that_the_server_closed_is_no_failure(server: Any) -> None:
    """Keep-alive ends at the server's will: a request that meets it goes out again on a new connection."""
    data = run_load(make_settings(server.url, {"hangs_up": True}, num_sessions=6, max_concurrency=1))[1]
    assert data["completed"] == 6
    assert data["connect"] is not None


def test_a_dead_server_does_not_eat_the_load() -> None:
    """The process ends in its eighth answer: what came before is measured, what was open is cut off, the rest is not
    thrown at a closed port."""
    with scripted_server(dies_after=8) as server:
        started_s = time.monotonic()
        data = run_load(make_settings(server.url, {"gap_s": 0.005}, num_sessions=500, max_concurrency=2))[1]
    assert time.monotonic() - started_s < 20
    assert data["end_reason"] == EndReason.SERVER_GONE.value
    assert not data["is_complete"]
    assert 4 <= data["completed"] <= 6
    assert data["mean_ttft_ms"] > 0
    assert data["failed"] <= 4
    assert data["not_sent"] > 480
    assert {failure["kind"] for failure in data["failures"]} <= {"cut off", "no connection"}


def test_a_stopped_run_keeps_what_it_has(server: Any) -> None:
    """Requests in flight are aborted, not failed; the server sees their clients go."""
    settings = make_settings(
        server.url, {"gap_s": 0.02}, num_sessions=60, max_concurrency=3, extra={"run": "stop"}, output_tokens=fixed(30)
    )

    async def stopped() -> BenchResult:
        async with opened(settings) as test:
            asyncio.get_running_loop().call_later(2.5, test.stop.set, EndReason.INTERRUPTED)
            return BenchResult.of([await test.run(test.points()[0])], settings)

    result = asyncio.run(stopped())
    measures = result.measures
    assert result.end_reason is EndReason.INTERRUPTED
    assert measures.num_aborted == 3
    assert measures.num_failed == 0
    assert 3 <= measures.num_completed <= 20
    assert result.num_not_sent == 60 - measures.num_completed - 3
    partial = [record for record in result.records if record.is_aborted]
    assert all(record.end_s >= record.sent_s for record in partial)
    time.sleep(0.2)
    logged = [entry for entry in server.log() if entry["body"].get("run") == "stop"]
    assert all(len(entry["sent_s"]) < 30 for entry in logged[-3:]), "the server stopped sending"


def test_stopped_in_the_warm_up(server: Any) -> None:
    """Nothing of the load is sent, and what there is (nothing) is a result."""
    settings = make_settings(server.url, {"gap_s": 0.1}, num_warmups=2, num_sessions=5, extra={"run": "warm"})

    async def stopped() -> BenchResult:
        async with opened(settings) as test:
            asyncio.get_running_loop().call_later(0.2, test.stop.set, EndReason.INTERRUPTED)
            return BenchResult.of([await test.run(test.points()[0])], settings)

    result = asyncio.run(stopped())
    assert result.end_reason is EndReason.INTERRUPTED
    assert (result.records, result.num_not_sent) == ([], 5)
    assert sum(entry["body"].get("run") == "warm" for entry in server.log()) == 3


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ({"refuses": ["ignore_eos"]}, "use --no-ignore-eos"),
        ({"status": 404, "message": "Not Found"}, "right route"),
        ({"status": 401, "message": "who are you"}, "--api-key"),
        ({"status": 500, "message": "boom"}, r"http 500\): boom"),
    ],
    ids=["ignore_eos", "route", "key", "fault"],
)
def test_the_first_request_says_what_is_wrong(server: Any, script: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PreflightError, match=sentence):
        run_load(make_settings(server.url, script))


def test_nobody_there() -> None:
    with scripted_server() as server:
        url = server.url
    with pytest.raises(PreflightError, match="No server answers at http://127"):
        run_load(make_settings(url))


def test_a_server_that_comes_late_is_waited_for() -> None:
    with scripted_server() as first:
        port = int(first.url.rsplit(":", 1)[1])
    late = subprocess.Popen(
        [sys.executable, "-c", f"import time, runpy, sys; time.sleep(1.5); sys.argv[1:] = ['{{\"port\": {port}}}']; "
         f"runpy.run_path({str(Path(__file__).parents[1] / 'scripted_server.py')!r}, run_name='__main__')"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert run_load(make_settings(first.url, {}, wait_s=30.0, num_sessions=2))[1]["completed"] == 2
    finally:
        late.kill()
        late.wait()


def test_the_warm_up_may_not_fail(server: Any) -> None:
    with pytest.raises(PreflightError, match=r"warm-up failed \(http 500\)"):
        run_load(make_settings(server.url, {"after": 1, "status": 500}, num_warmups=2))


def test_prompts_longer_than_the_context_are_refused_before_anything_is_sent() -> None:
    with scripted_server(max_model_len=128) as server:
        with pytest.raises(ConfigError, match=r"has 208 tokens .* context is 128"):
            run_load(make_settings(server.url, {}, prompt_tokens=LengthRange(low=8, high=200)))
        assert len(server.log()) == 1


COMMAND = [sys.executable, "-m", "kvasir.cli.main", "bench", "serve"]


def test_ctrl_c_writes_the_result(server: Any, tmp_path: Path) -> None:
    script = json.dumps({"script": {"gap_s": 0.02}})
    path = tmp_path / "run.json"
    options = ["--num-prompts", "500", "--max-concurrency", "2", "--input-tokens", "8", "--output-tokens", "10"]
    process = subprocess.Popen(
        [*COMMAND, "--base-url", server.url, "--extra-body", script, "-o", str(path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    before = len(server.log())
    deadline_s = time.monotonic() + 30
    while len(server.log()) < before + 10 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "stopping: what was measured so far is kept" in stderr
    data = json.loads(path.read_text())
    assert data["end_reason"] == "interrupted"
    assert data["completed"] >= 3
    assert data["completed"] + data["aborted"] + data["not_sent"] == 500
    assert f"{data['aborted']} aborted, {data['not_sent']} not sent (interrupted)" in stdout


def test_failed_requests_fail_the_command(server: Any, tmp_path: Path) -> None:
    script = json.dumps({"script": {"after": 3, "status": 503, "message": "queue is full"}})
    options = ["--num-prompts", "4", "--max-concurrency", "1", "--input-tokens", "8", "--output-tokens", "4"]
    done = subprocess.run(
        [*COMMAND, "--base-url", server.url, "--extra-body", script, *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert "http 503" in done.stdout and "queue is full" in done.stdout
    (written,) = (tmp_path / "kvasir-bench").glob("*.json")
    assert json.loads(written.read_text())["failed"] == 4


def test_api_keys_and_headers_are_sent(server: Any) -> None:
    settings = make_settings(server.url, {}, extra={"run": "key"}, num_sessions=1)
    target = Target.from_url(server.url, Api.COMPLETIONS, api_key="s3cret", headers=["X-Tenant: acme"])
    run_load(replace(settings, endpoint=EndpointSettings(target=target, body=settings.endpoint.body)))
    entry = next(entry for entry in server.log() if entry["body"].get("run") == "key")
    assert entry["headers"]["authorization"] == "Bearer s3cret"
    assert entry["headers"]["x-tenant"] == "acme"
