"""A server that does exactly what each request tells it, and keeps a log of when: what load tests are calibrated on.

Runs in a process of its own (``scripted_server()``), speaks plain HTTP/1.1, and reads its orders from the body's
``script``: delays in seconds, faults, forms of the stream.  Its log has ``time.perf_counter`` of every chunk it wrote,
which on one machine is the clock that the client reads too.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

METRICS = """# HELP vllm:num_requests_running Running.
vllm:num_requests_running{{model_name="scripted",engine="0"}} {running}
vllm:num_requests_waiting{{model_name="scripted",engine="0"}} {waiting}
vllm:kv_cache_usage_perc{{model_name="scripted",engine="0"}} {usage}
vllm:gpu_cache_usage_perc{{model_name="scripted",engine="0"}} {usage}
vllm:prefix_cache_queries_total{{model_name="scripted"}} {queries}
vllm:prefix_cache_hits_total{{model_name="scripted"}} {hits}
vllm:cache_config_info{{block_size="16",num_bytes="1048576"}} 1.0
process_resident_memory_bytes 5.0e+08
vllm:e2e_request_latency_seconds_bucket{{le="0.1"}} 3
"""


@dataclass
class Server:
    """``slots``: streams that are served at once; the others wait.  ``dies_after``: the process ends in the middle of
    this answer (counted from 1)."""

    slots: asyncio.Semaphore
    has_metrics: bool = True
    max_model_len: int | None = None
    dies_after: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_asked: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)
    num_resets: int = 0
    by_script: dict[str, int] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        received_s = time.perf_counter()
        method, path, _ = head.split("\r\n", 1)[0].split(" ")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "POST" and path.startswith("/v1/"):
            return await self._generate(writer, json.loads(body), headers, received_s)
        status, text = self._page(method, path)
        _respond(writer, status, text)
        return True

    def _page(self, method: str, path: str) -> tuple[int, str]:
        if path == "/v1/models":
            entry: dict[str, Any] = {"id": "scripted", "object": "model"}
            if self.max_model_len:
                entry["max_model_len"] = self.max_model_len
            return 200, json.dumps({"object": "list", "data": [entry]})
        if path == "/metrics" and self.has_metrics:
            usage = self.num_running / 64
            return 200, METRICS.format(
                running=self.num_running,
                waiting=self.num_waiting,
                usage=usage,
                queries=10 * self.num_asked,
                hits=4 * self.num_asked,
            )
        if path == "/log":
            return 200, json.dumps({"log": self.log, "resets": self.num_resets})
        if path == "/reset_prefix_cache" and method == "POST":
            self.num_resets += 1
            return 200, "{}"
        return 404, json.dumps({"detail": "Not Found"})

    async def _generate(
        self, writer: asyncio.StreamWriter, body: dict[str, Any], headers: dict[str, str], received_s: float
    ) -> bool:
        script = body.get("script", {})
        self.num_asked += 1
        entry = {
            "received_s": received_s,
            "body": body,
            "headers": headers,
            "sent_s": [],
            "number": self._number(script),
        }
        self.log.append(entry)
        refused = [name for name in script.get("refuses", []) if name in body]
        if refused:
            _respond(writer, 400, json.dumps({"error": {"message": f"unknown field: {refused[0]}"}}))
            return True
        if self._is_before(script):
            script = {}
        if script.get("status"):
            _respond(writer, script["status"], json.dumps({"error": {"message": script.get("message", "no")}}))
            return True
        if (every := script.get("fails_every")) and entry["number"] % every == 0:
            _respond(writer, 429, json.dumps({"error": {"message": "too many"}}))
            return True
        if script.get("is_no_stream"):
            _respond(writer, 200, "the whole answer")
            return True
        if script.get("is_silent"):
            await asyncio.sleep(3600)
        self.num_waiting += 1
        async with self.slots:
            self.num_waiting -= 1
            self.num_running += 1
            try:
                return await self._stream(writer, body, script, entry)
            finally:
                self.num_running -= 1

    def _number(self, script: dict[str, Any]) -> int:
        """Which request with this script, from 1."""
        key = json.dumps(script, sort_keys=True)
        self.by_script[key] = self.by_script.get(key, 0) + 1
        return self.by_script[key]

    def _is_before(self, script: dict[str, Any]) -> bool:
        """``after`` n: the first n requests with this script are served well."""
        return self.by_script[json.dumps(script, sort_keys=True)] <= script.get("after", 0)

    async def _stream(
        self, writer: asyncio.StreamWriter, body: dict[str, Any], script: dict[str, Any], entry: dict[str, Any]
    ) -> bool:
        stream = _Stream(writer, is_chat="messages" in body)
        stream.begin()
        if script.get("is_garbage"):
            stream.raw(b"data: {not json\n\n")
        if script.get("says_nothing"):
            return stream.end()
        if stream.is_chat and script.get("greets_early", True):
            stream.write({"role": "assistant", "content": ""})
        num_tokens = body.get("max_tokens", 4)
        per_chunk = script.get("tokens_per_chunk", 1)
        delays = [script.get("ttft_s", 0.0), *script.get("gaps_s", [])]
        for index, start in enumerate(range(0, num_tokens, per_chunk)):
            delay_s = delays[index] if index < len(delays) else script.get("gap_s", 0.0)
            await asyncio.sleep(delay_s)
            if self.dies_after and self.num_asked >= self.dies_after and index == 2:
                sys.exit(0)
            if script.get("cut_after") == index:
                writer.transport.abort()
                return False
            if script.get("error_after") == index:
                stream.event({"error": {"message": "out of blocks"}})
                return stream.end()
            entry["sent_s"].append(time.perf_counter())
            stream.write(f"{entry['number']} " if script.get("is_named") and start == 0 else f"w{start} ")
        if script.get("ends_early"):
            return stream.end(is_whole=False)
        stream.finish("length")
        entry["finished_s"] = time.perf_counter()
        if body.get("stream_options", {}).get("include_usage") and not script.get("hides_usage"):
            stream.event({"choices": [], "usage": _usage(body, num_tokens, script)})
        stream.end()
        return not script.get("hangs_up")


class _Stream:
    """Server-sent events in HTTP chunks."""

    def __init__(self, writer: asyncio.StreamWriter, *, is_chat: bool) -> None:
        self._writer = writer
        self.is_chat = is_chat

    def begin(self) -> None:
        self._writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        )

    def write(self, piece: str | dict[str, str]) -> None:
        delta = {"content": piece} if isinstance(piece, str) else piece
        choice = {"index": 0, "delta": delta} if self.is_chat else {"index": 0, "text": piece}
        self.event({"choices": [choice | {"finish_reason": None}], "usage": None})

    def finish(self, reason: str) -> None:
        empty: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
        self.event({"choices": [{"index": 0, "finish_reason": reason} | empty]})

    def event(self, payload: Any) -> None:
        self.raw(b"data: " + json.dumps(payload).encode() + b"\n\n")

    def end(self, *, is_whole: bool = True) -> bool:
        if is_whole:
            self.raw(b"data: [DONE]\n\n")
        self._writer.write(b"0\r\n\r\n")
        return True

    def raw(self, data: bytes) -> None:
        if self._writer.is_closing():
            raise ConnectionResetError  # the client went away
        self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def _usage(body: dict[str, Any], num_tokens: int, script: dict[str, Any]) -> dict[str, Any]:
    """A word is a token, a message costs three more."""
    if "messages" in body:
        num_prompt = sum(3 + len(message["content"].split()) for message in body["messages"])
    elif isinstance(body["prompt"], str):
        num_prompt = len(body["prompt"].split())
    else:
        num_prompt = len(body["prompt"])
    usage: dict[str, Any] = {"prompt_tokens": num_prompt, "completion_tokens": num_tokens}
    if "cached_share" in script:
        usage["prompt_tokens_details"] = {"cached_tokens": int(num_prompt * script["cached_share"])}
    return usage


def _respond(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    data = text.encode()
    writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(data), data))


@dataclass(frozen=True)
class Running:
    url: str
    process: subprocess.Popen[str]

    def log(self) -> list[dict[str, Any]]:
        return httpx.get(f"{self.url}/log").json()["log"]

    def num_resets(self) -> int:
        return httpx.get(f"{self.url}/log").json()["resets"]


@contextmanager
def scripted_server(**settings: Any) -> Iterator[Running]:
    """``slots``, ``has_metrics``, ``max_model_len``, ``dies_after``, ``port`` as above."""
    process = subprocess.Popen(
        [sys.executable, __file__, json.dumps(settings)], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        yield Running(f"http://127.0.0.1:{port}", process)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def _main(settings: dict[str, Any]) -> None:
    slots = asyncio.Semaphore(settings.pop("slots", 1000))
    port = settings.pop("port", 0)
    app = Server(slots=slots, **settings)
    server = await asyncio.start_server(app.serve, "127.0.0.1", port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1])))
