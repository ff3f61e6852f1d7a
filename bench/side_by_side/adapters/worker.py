"""The loop of every worker: asks from standard input, answers to standard output, all at once if they come so."""

import asyncio
import os
import sys
import threading
import time
from typing import Protocol

from side_by_side.wire import Answer, Ask, Ready, Settings, from_line, to_line


class Program(Protocol):
    """A program that is up."""

    @property
    def started_s(self) -> float | None:
        """None: it runs in this process, so it began with it."""
        ...

    @property
    def pid(self) -> int: ...

    async def generate(self, prompt: list[int], num_output: int) -> Answer:
        """The answer, with whatever number."""
        ...

    async def about(self) -> dict[str, object]: ...

    async def close(self) -> None: ...


class Opener(Protocol):
    async def __call__(self, settings: Settings) -> Program: ...


FIRST_PROMPT = [28, 14, 9, 57]
"""Any four tokens: the first request, which ends the start."""


def run(opener: Opener) -> None:
    """The worker's main: settings are the only argument; ends when standard input does."""
    lines = _own_stdout()
    asyncio.run(_serve(opener, Settings.from_argument(sys.argv[1]), lines))


def _own_stdout() -> int:
    """A descriptor for our lines alone: what the program prints goes to standard error."""
    lines = os.dup(1)
    os.dup2(2, 1)
    return lines


async def _serve(opener: Opener, settings: Settings, lines: int) -> None:
    program = await opener(settings)
    try:
        first = await program.generate(FIRST_PROMPT, 1)
        if first.error is not None:
            raise SystemExit(f"the first request failed: {first.error}")
        about = await program.about()
        ready = Ready(started_s=program.started_s, first_token_s=first.times_s[0], pid=program.pid, about=about)
        _say(lines, to_line(ready))
        await _answer_all(program, lines)
    finally:
        await program.close()
    # Programs that live in this process may hold threads that never end.
    os._exit(0)


async def _answer_all(program: Program, lines: int) -> None:
    """Until the bench closes our input; what it still waited for then, if it died, is dropped."""
    asks: asyncio.Queue[Ask | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_read_asks, args=(loop, asks), daemon=True).start()
    tasks: set[asyncio.Task[None]] = set()
    while (ask := await asks.get()) is not None:
        task = asyncio.create_task(_answer(program, ask, lines))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    for task in tasks:
        task.cancel()


async def _answer(program: Program, ask: Ask, lines: int) -> None:
    sent_s = time.monotonic()
    try:
        answer = await program.generate(ask.prompt, ask.num_output)
    except Exception as error:
        answer = Answer(number=ask.number, sent_s=sent_s, times_s=[], token_ids=[], error=repr(error)[:500])
    if answer.error is None and len(answer.times_s) != ask.num_output:
        short = f"asked for {ask.num_output} tokens and got {len(answer.times_s)}"
        answer = Answer(number=0, sent_s=sent_s, times_s=answer.times_s, token_ids=answer.token_ids, error=short)
    numbered = Answer(
        number=ask.number,
        sent_s=answer.sent_s,
        times_s=answer.times_s,
        token_ids=answer.token_ids,
        num_cached=answer.num_cached,
        error=answer.error,
    )
    _say(lines, to_line(numbered))


def _read_asks(loop: asyncio.AbstractEventLoop, asks: "asyncio.Queue[Ask | None]") -> None:
    for line in sys.stdin.buffer:
        ask = from_line(line)
        assert isinstance(ask, Ask)
        loop.call_soon_threadsafe(asks.put_nowait, ask)
    loop.call_soon_threadsafe(asks.put_nowait, None)


def _say(lines: int, text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(lines, data) :]
