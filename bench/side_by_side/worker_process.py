"""The bench's end of a worker: start it in its own environment, ask it, match answers to asks."""

import asyncio
import os
import time
from pathlib import Path

from side_by_side.wire import Answer, Ask, Ready, Settings, from_line, to_line

BENCH = Path(__file__).parents[1]
START_PATIENCE_S = 300.0
LARGEST_LINE = 1 << 24
# Choices of this machine or of ours, not the program's.  Kvasir sets the last one for itself on import, so it is in our
# own environment: handed on, it makes another program three times slower.
_NOT_INHERITED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")


class WorkerFailure(Exception):
    """A worker that did not start, ended early, or failed a request."""


class WorkerProcess:
    """``open`` it, ``ask`` it (many at once if you like), ``close`` it."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, launched_s: float) -> None:
        self._process = process
        self._log = log
        self._launched_s = launched_s
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._reader: asyncio.Task[None] | None = None
        self.ready: Ready | None = None

    @classmethod
    async def open(cls, python: Path, module: str, settings: Settings, log: Path) -> "WorkerProcess":
        """Returns once the program has given its first token.  Raises ``WorkerFailure`` with its last words."""
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        environment |= {"PYTHONPATH": str(BENCH), "PYTHONUNBUFFERED": "1"}
        launched_s = time.monotonic()
        with log.open("w") as errors:
            process = await asyncio.create_subprocess_exec(
                *(str(python), "-m", module, settings.to_argument()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
                limit=LARGEST_LINE,
            )
        worker = cls(process, log, launched_s)
        try:
            await asyncio.wait_for(worker._wait_until_ready(), START_PATIENCE_S)
        except BaseException:
            await worker.close()
            raise
        worker._reader = asyncio.create_task(worker._read_answers())
        return worker

    @property
    def pid(self) -> int:
        """The root of the processes whose memory counts."""
        assert self.ready is not None
        return self.ready.pid

    @property
    def own_pid(self) -> int:
        return self._process.pid

    @property
    def start_to_first_token_s(self) -> float:
        """From the program's start; a program inside the worker starts with the worker."""
        assert self.ready is not None
        started_s = self._launched_s if self.ready.started_s is None else self.ready.started_s
        return self.ready.first_token_s - started_s

    async def ask(self, prompt: list[int], num_output: int) -> Answer:
        """Raises ``WorkerFailure`` when the program failed the request."""
        self._number += 1
        number = self._number
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        self._process.stdin.write(to_line(Ask(number=number, prompt=prompt, num_output=num_output)).encode())
        await self._process.stdin.drain()
        answer = await answered
        if answer.error is not None:
            raise WorkerFailure(f"{answer.error} ({self._log})")
        return answer

    async def close(self) -> None:
        """End of input ends a worker; one that does not listen is killed."""
        if self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), 30)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def _wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            await self._process.wait()
            raise WorkerFailure(f"did not start: {self._last_words()} ({self._log})")
        ready = from_line(line)
        if not isinstance(ready, Ready):
            raise WorkerFailure(f"began with {line[:80]!r} ({self._log})")
        self.ready = ready

    async def _read_answers(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer = from_line(line)
            assert isinstance(answer, Answer)
            self._waiting.pop(answer.number).set_result(answer)
        for answered in self._waiting.values():
            answered.set_exception(WorkerFailure(f"ended early: {self._last_words()} ({self._log})"))
        self._waiting.clear()

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"
