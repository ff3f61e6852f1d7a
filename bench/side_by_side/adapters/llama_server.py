"""llama.cpp through its HTTP server, built natively from source."""

import json
from typing import Any

from side_by_side.adapters import http_stream, worker
from side_by_side.adapters.server_process import ServerProcess, free_port
from side_by_side.wire import Answer, Settings

UNTOLD = 0
"""Stands for such a token where ids are compared or sent again."""


class LlamaServer:
    """One slot a stream; a slot keeps its last tokens, which is this program's prefix cache."""

    def __init__(self, server: ServerProcess, *, has_prefix_cache: bool, command: list[str]) -> None:
        self._server = server
        self._has_prefix_cache = has_prefix_cache
        self._command = command
        self.started_s = server.started_s
        self.pid = server.pid

    async def generate(self, prompt: list[int], num_output: int) -> Answer:
        body = {
            "prompt": prompt,
            "n_predict": num_output,
            "ignore_eos": True,
            "samplers": ["top_k"],
            "top_k": 1,
            "stream": True,
            "return_tokens": True,
            "timings_per_token": True,
            "cache_prompt": self._has_prefix_cache,
        }
        sent_s, events = await http_stream.stream(self._server.port, "/completion", body)
        times_s: list[float] = []
        token_ids: list[int] = []
        num_cached = None
        for time_s, event in events:
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            num_cached = event["timings"].get("cache_n", num_cached)
            # A token that ends inside a character is held back and its id never told: the count tells of it.
            num_new = event["timings"]["predicted_n"] - len(times_s)
            times_s += [time_s] * num_new
            token_ids += [UNTOLD] * (num_new - len(event["tokens"])) + event["tokens"]
        return Answer(number=0, sent_s=sent_s, times_s=times_s, token_ids=token_ids, num_cached=num_cached)

    async def about(self) -> dict[str, Any]:
        build = json.loads(await http_stream.get(self._server.port, "/props")).get("build_info")
        return {"version": build, "flags": self._command[1:]}

    async def close(self) -> None:
        self._server.end()


async def open_program(settings: Settings) -> LlamaServer:
    port = free_port()
    flags = {
        "--model": settings.model,
        "--threads": settings.num_threads,
        "--ctx-size": settings.context_tokens * settings.num_parallel,
        "--parallel": settings.num_parallel,
        "--flash-attn": "on",
        "--cache-type-k": settings.kv,
        "--cache-type-v": settings.kv,
        **settings.options["flags"],
    }
    command = [settings.program, "--no-webui", *(str(part) for pair in flags.items() for part in pair)]
    command += ["--host", http_stream.HOST, "--port", str(port)]
    server = ServerProcess(command, port, {})
    await server.wait_until_up()
    return LlamaServer(server, has_prefix_cache=settings.has_prefix_cache, command=command)


if __name__ == "__main__":
    worker.run(open_program)
