"""A real server in its own two processes for tests: started, spoken to over its socket, ended.

Run as a program it is the server: ``python live_server.py '{"engine": {...}, "server": {...}}'`` prints one JSON line
when it is ready.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import httpx
import msgspec
import psutil

if TYPE_CHECKING:
    import openai

BLOCK_SIZE = 16
DEMO_BLOCK_BYTES = 30 * 3 * 64 * 2 * 2 * BLOCK_SIZE
"""layers * KV heads * head size * (K, V) * bf16 * tokens of the embedded model."""


def engine_settings(num_blocks: int, **settings: Any) -> dict[str, Any]:
    """An ``EngineConfig`` as JSON: the embedded model with a pool of exactly ``num_blocks`` blocks of 16 tokens."""
    cache = {
        "block_size": BLOCK_SIZE,
        "kv_cache_dtype": {"k": "bf16", "v": "bf16"},
        "memory": {"kv_cache_memory_bytes": num_blocks * DEMO_BLOCK_BYTES},
    }
    return {"model": "demo", "cache": cache | settings.pop("cache", {})} | settings


@dataclass
class LiveServer:
    """``ready`` is what the server printed; ``log`` the path of its standard error."""

    process: subprocess.Popen[str]
    log: Path
    ready: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.ready["url"]

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def engine(self) -> psutil.Process:
        return psutil.Process(self.ready["engine_pid"])

    @property
    def log_text(self) -> str:
        return self.log.read_text()

    def client(self, **options: Any) -> "openai.OpenAI":
        import openai  # a second of imports that only some tests need

        return openai.OpenAI(**({"base_url": self.url + "/v1", "api_key": "none", "max_retries": 0} | options))

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        content = body if isinstance(body, bytes | str) else json.dumps(body)
        headers = {"Content-Type": "application/json"} | options.pop("headers", {})
        return httpx.post(self.url + path, content=content, headers=headers, timeout=60, **options)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of ``name`` whose labels include ``labels``."""
        total, found = 0.0, False
        for line in httpx.get(self.url + "/metrics", timeout=10).text.splitlines():
            if not line.startswith((name + "{", name + " ")):
                continue
            if all(f'{label}="{value}"' in line for label, value in labels.items()):
                total, found = total + float(line.rsplit(" ", 1)[1]), True
        assert found, f"/metrics has no {name} with {labels}"
        return total

    def wait_idle(self, timeout_s: float = 20.0) -> None:
        """Until nothing runs, nothing waits and no block is in use."""
        self.wait_for(
            lambda: (
                self.metric("vllm:num_requests_running") == 0
                and self.metric("vllm:num_requests_waiting") == 0
                and self.metric("kvasir:kv_blocks", state="used") == 0
            ),
            timeout_s,
        )

    @staticmethod
    def wait_for(condition: Any, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"still not so after {timeout_s} s"
            time.sleep(0.02)

    def stop(self, timeout_s: float = 20.0) -> int:
        """SIGTERM, then the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


@contextmanager
def running_server(
    engine: dict[str, Any], server: dict[str, Any] | None = None, *, temp: Path | None = None
) -> Iterator[LiveServer]:
    """A ready server; whatever the test did to it, none of its processes is left afterwards."""
    live = spawn_server(engine, server, temp=temp)
    try:
        line = _output(live).readline()
        assert line, f"the server did not get ready:\n{live.log_text}"
        live.ready = json.loads(line)
        yield live
    finally:
        family = [live.process.pid, *([live.ready["engine_pid"]] if live.ready else [])]
        try:
            live.stop()
        except subprocess.TimeoutExpired:
            live.process.kill()
            live.process.wait()
        for pid in family[1:]:
            if psutil.pid_exists(pid):
                psutil.Process(pid).kill()
        _output(live).close()
        live.log.unlink()


def spawn_server(
    engine: dict[str, Any], server: dict[str, Any] | None = None, *, temp: Path | None = None
) -> LiveServer:
    """Start it and do not wait.  ``temp``: where it makes its socket files."""
    handle, log = tempfile.mkstemp(suffix=".log")
    settings = json.dumps({"engine": engine, "server": {"port": 0} | (server or {})})
    process = subprocess.Popen(
        [sys.executable, __file__, settings],
        stdout=subprocess.PIPE,
        stderr=handle,
        text=True,
        env=os.environ | ({"TMPDIR": str(temp)} if temp else {}),
    )
    os.close(handle)
    return LiveServer(process=process, log=Path(log))


def _output(live: LiveServer) -> IO[str]:
    assert live.process.stdout is not None
    return live.process.stdout


def _serve(settings: str) -> None:
    from kvasir.core.errors import KvasirError
    from kvasir.engine.config import EngineConfig
    from kvasir.server.config import ServerConfig
    from kvasir.server.launch import ServerInfo, run_server

    def on_ready(info: ServerInfo) -> None:
        print(msgspec.json.encode(info).decode(), flush=True)

    given = json.loads(settings)
    try:
        run_server(
            msgspec.convert(given["engine"], EngineConfig),
            msgspec.convert(given["server"], ServerConfig),
            on_ready=on_ready,
        )
    except KvasirError as error:
        sys.exit(f"{error.code}: {error}")


if __name__ == "__main__":
    _serve(sys.argv[1])
