"""Kvasir through its HTTP server."""

import json
from typing import Any

from side_by_side.adapters import http_stream, worker
from side_by_side.adapters.server_process import ServerProcess, free_port
from side_by_side.wire import Answer, Settings


class KvasirServer:
    """``options["flags"]`` are further flags of ``kvasir serve``."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.started_s = server.started_s
        self.pid = server.pid

    async def generate(self, prompt: list[int], num_output: int) -> Answer:
        body = {
            "prompt": prompt,
            "max_tokens": num_output,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        sent_s, events = await http_stream.stream(self._server.port, "/v1/completions", body)
        times_s: list[float] = []
        token_ids: list[int] = []
        num_cached = None
        for time_s, event in events:
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            for choice in event["choices"]:
                token_ids += choice["token_ids"]
                times_s += [time_s] * len(choice["token_ids"])
            if event.get("usage"):
                num_cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
        return Answer(number=0, sent_s=sent_s, times_s=times_s, token_ids=token_ids, num_cached=num_cached)

    async def about(self) -> dict[str, Any]:
        return json.loads(await http_stream.get(self._server.port, "/version"))

    async def close(self) -> None:
        self._server.end()


async def open_program(settings: Settings) -> KvasirServer:
    port = free_port()
    command = [settings.program, "serve", settings.model, "--port", str(port), "--threads", str(settings.num_threads)]
    command += ["--kv-cache-dtype", settings.kv, *settings.options["flags"]]
    command += ["--enable-prefix-caching" if settings.has_prefix_cache else "--no-enable-prefix-caching"]
    server = ServerProcess(command, port, {})
    await server.wait_until_up()
    return KvasirServer(server)


if __name__ == "__main__":
    worker.run(open_program)
