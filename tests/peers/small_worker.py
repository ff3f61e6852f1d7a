"""A worker whose program counts: each output token is the sum of the prompt and a running number.

Prompts that begin with 666 fail, those that begin with 667 come out short, 668 ends the process, 669 is slow, 670 takes
a minute.
"""

import asyncio
import os
import time
from typing import Any

from side_by_side.adapters import worker
from side_by_side.wire import Answer, Settings


class Counter:
    started_s = None

    def __init__(self, settings: Settings) -> None:
        self.pid = os.getpid()
        self._settings = settings

    async def generate(self, prompt: list[int], num_output: int) -> Answer:
        sent_s = time.monotonic()
        if prompt[0] == 666:
            raise ValueError("a bad number")
        if prompt[0] == 668:
            print("I leave", flush=True)
            os._exit(3)
        await asyncio.sleep({669: 0.3, 670: 60.0}.get(prompt[0], 0.0))
        count = num_output - (prompt[0] == 667)
        token_ids = [sum(prompt) + i for i in range(count)]
        return Answer(number=0, sent_s=sent_s, times_s=[time.monotonic()] * count, token_ids=token_ids, num_cached=7)

    async def about(self) -> dict[str, Any]:
        print("this is no message: programs may print what they like")
        return {"kv": self._settings.kv, "threads": self._settings.num_threads}

    async def close(self) -> None:
        """Nothing to close."""


async def open_program(settings: Settings) -> Counter:
    if settings.kv == "none":
        raise SystemExit("no such KV format")
    return Counter(settings)


if __name__ == "__main__":
    worker.run(open_program)
