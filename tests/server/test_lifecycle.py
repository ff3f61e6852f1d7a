"""Two processes through thick and thin: stalls, deaths, signals; nobody hangs and nothing is left behind."""

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from live_server import LiveServer, engine_settings, running_server, spawn_server

PROMPT = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
# Two seats and a queue of one.
SETTINGS = engine_settings(num_blocks=36, max_model_len=512, threads=1, scheduler={"max_num_seqs": 2, "max_waiting": 1})


@pytest.fixture(scope="module")
def doomed(demo_model: Path) -> Iterator[LiveServer]:
    """A server with a key and little patience; the last test that uses it kills its engine."""
    with running_server(SETTINGS, {"stall_timeout_s": 2.0, "api_key": "secret"}) as server:
        yield server


class Background:
    """A long generation running in a thread; ``outcome`` is what became of it."""

    def __init__(self, server: LiveServer, *, stream: bool) -> None:
        self.outcome: Any = None
        self.has_begun = threading.Event()
        self._client = server.client(api_key="secret", timeout=60)
        self._stream = stream
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        settings: dict[str, Any] = {"model": "demo", "prompt": PROMPT["prompt"], "max_tokens": 400, "temperature": 0}
        try:
            if self._stream:
                for _ in self._client.completions.create(**settings, stream=True, extra_body={"ignore_eos": True}):
                    self.has_begun.set()
                self.outcome = "end"
            else:
                self.outcome = self._client.completions.create(**settings, extra_body={"ignore_eos": True})
        except openai.OpenAIError as error:
            self.outcome = error

    def result(self, timeout_s: float = 30.0) -> Any:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the client still waits"
        return self.outcome


def begin(server: LiveServer) -> tuple[Background, Background, Background]:
    """One stream that has begun, one whole answer in the making, one more in the queue (there are two seats)."""
    streamed = Background(server, stream=True)
    assert streamed.has_begun.wait(30)
    whole = Background(server, stream=False)
    server.wait_for(lambda: server.metric("vllm:num_requests_running") == 2)
    queued = Background(server, stream=False)
    server.wait_for(lambda: server.metric("vllm:num_requests_waiting") == 1)
    return streamed, whole, queued


def health(server: LiveServer) -> tuple[int, str]:
    response = httpx.get(server.url + "/health", timeout=10)
    return response.status_code, response.json()["status"]


def test_the_key_is_asked_for(doomed: LiveServer) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        doomed.client(api_key="wrong").models.list()
    assert caught.value.code == "invalid_api_key"
    assert httpx.get(doomed.url + "/v1/models").status_code == 401
    assert doomed.post("/reset_prefix_cache", {}).status_code == 401
    assert doomed.client(api_key="secret").models.list().data[0].id == "demo"
    assert "$KVASIR_API_KEY" in doomed.ready["curl"] and "secret" not in str(doomed.ready)
    for open_path in ("/health", "/metrics", "/version"):
        assert httpx.get(doomed.url + open_path).status_code == 200


def test_a_stalled_engine_turns_health_red_and_comes_back(doomed: LiveServer) -> None:
    streamed, whole, queued = begin(doomed)
    overloaded = doomed.post("/v1/completions", PROMPT, headers={"Authorization": "Bearer secret"})
    assert overloaded.status_code == 503 and overloaded.json()["error"]["code"] == "overloaded"
    doomed.engine.suspend()
    try:
        doomed.wait_for(lambda: health(doomed) == (503, "stalled"), 30)
        assert "has not finished a step for" in httpx.get(doomed.url + "/health").json()["reason"]
        for background in (streamed, whole, queued):
            assert background.result().code == "engine_dead"
        assert isinstance(whole.outcome, openai.InternalServerError) and whole.outcome.status_code == 503
        refused = doomed.post("/v1/completions", PROMPT, headers={"Authorization": "Bearer secret"})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_dead"
    finally:
        doomed.engine.resume()
    doomed.wait_for(lambda: health(doomed) == (200, "ok"))
    doomed.wait_idle()
    client = doomed.client(api_key="secret")
    assert client.completions.create(model="demo", prompt="a", max_tokens=1).usage.completion_tokens == 1


def test_a_killed_engine_is_told_to_everyone(doomed: LiveServer) -> None:
    """kill -9 on the engine: an error for each request in flight, health red, and an orderly end all the same."""
    background = begin(doomed)
    doomed.engine.kill()
    outcomes = [each.result() for each in background]
    assert [outcome.code for outcome in outcomes] == ["engine_dead"] * 3
    assert "signal 9" in str(outcomes[1]) and outcomes[1].status_code == 503
    assert health(doomed) == (503, "dead")
    started_s = time.monotonic()
    refused = doomed.post("/v1/completions", PROMPT, headers={"Authorization": "Bearer secret"})
    assert refused.status_code == 503 and time.monotonic() - started_s < 2
    assert doomed.stop() == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_seconds(demo_model: Path, tmp_path: Path, how: signal.Signals) -> None:
    with running_server(SETTINGS, {"api_key": "secret"}, temp=tmp_path) as server:
        engine = server.engine
        background = begin(server)
        assert len(list(tmp_path.iterdir())) == 1
        started_s = time.monotonic()
        server.process.send_signal(how)
        assert server.process.wait(20) == 0
        assert time.monotonic() - started_s < 10
        assert [each.result().code for each in background] == ["shutting_down"] * 3
        assert not engine.is_running()
        assert list(tmp_path.iterdir()) == []
        assert "Traceback" not in server.log_text, server.log_text


def test_the_engine_does_not_outlive_a_killed_parent(demo_model: Path, tmp_path: Path) -> None:
    with running_server(SETTINGS, {"api_key": "secret"}, temp=tmp_path) as server:
        engine = server.engine
        begin(server)
        server.process.kill()
        engine.wait(timeout=10)
        server.wait_for(lambda: list(tmp_path.iterdir()) == [])


def test_a_signal_while_loading_leaves_nothing(demo_model: Path, tmp_path: Path) -> None:
    server = spawn_server(SETTINGS, temp=tmp_path)
    server.wait_for(lambda: bool(psutil.Process(server.process.pid).children()))
    (engine,) = psutil.Process(server.process.pid).children()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(20) == 0, server.log_text
    assert not engine.is_running() and list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_one_sentence_before_anything_is_loaded(demo_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = spawn_server(SETTINGS, {"port": port})
        assert server.process.wait(30) == 1
    message = server.log_text.strip()
    assert message.startswith(f"invalid_config: Cannot listen on 127.0.0.1 port {port} (Address already in use)")
    assert "\n" not in message


def test_a_model_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    server = spawn_server({"model": str(tmp_path / "nothing")}, temp=tmp_path)
    assert server.process.wait(60) == 1
    assert server.log_text.startswith("invalid_model: There is no model ") and server.log_text.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_engine_program_ends_when_its_input_does(tmp_path: Path) -> None:
    """The parent watch alone: no parent ever spoke."""
    import sys

    folder = tmp_path / "sockets"
    folder.mkdir()
    engine = subprocess.Popen(
        [sys.executable, "-m", "kvasir.server.engine_process", str(folder)], stdin=subprocess.PIPE
    )
    assert engine.stdin is not None
    engine.stdin.close()
    assert engine.wait(20) == 1
    assert not folder.exists()
