"""The engine process as the HTTP process holds it: spawned, spoken to, listened to, and never left behind."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import zmq
import zmq.asyncio

from kvasir.server import messages, wire

logger = logging.getLogger("kvasir.server")

_LAST_WORDS_MS = 100
_STANDARD_ERROR = 2


class EngineHandle:
    """One engine process and the pipes to it.  ``on_message`` gets everything it says, in order, on the event loop."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path) -> None:
        self._process = process
        self._directory = directory
        self._read_context = zmq.asyncio.Context()
        self._reader = wire.make_reader(self._read_context, directory, to_engine=False)
        self._write_context = zmq.Context()
        self._writer = wire.make_writer(self._write_context, directory, to_engine=True)

    @classmethod
    async def spawn(cls) -> "EngineHandle":
        directory = wire.make_directory()
        try:
            # Standard input is the engine's sign that we live (parent_watch); whatever it prints joins our errors, so
            # that our output stays ours.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kvasir.server.engine_process", str(directory)),
                stdin=asyncio.subprocess.PIPE,
                stdout=_STANDARD_ERROR,
            )
        except BaseException:
            wire.remove_directory(directory)
            raise
        return cls(process, directory)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    def send(self, message: messages.Message) -> None:
        """Never blocks; to a dead engine it says nothing."""
        if self.is_running:
            self._writer.send(messages.encode(message), zmq.NOBLOCK)

    async def listen(self, on_message: Callable[[messages.FromEngine], None]) -> int:
        """Until the engine process ends and its last words are heard; returns its exit status (negative: a signal)."""
        reading = asyncio.create_task(self._read(on_message))
        try:
            ending = asyncio.create_task(self._process.wait())
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            status = await ending
        finally:
            reading.cancel()
            await asyncio.wait({reading})
        while await self._reader.poll(_LAST_WORDS_MS):
            on_message(messages.decode_from_engine(await self._reader.recv()))
        return status

    async def _read(self, on_message: Callable[[messages.FromEngine], None]) -> None:
        while True:
            on_message(messages.decode_from_engine(await self._reader.recv()))

    async def close(self, grace_s: float) -> None:
        """Ask it to end, kill it after ``grace_s``, and remove the socket files.  Idempotent."""
        self.send(messages.Shutdown())
        try:
            await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            if grace_s > 0:
                logger.warning("the engine process did not end within %.1f s and is killed", grace_s)
            self._kill()
            await self._process.wait()
        finally:
            self._kill()
            self._reader.close(linger=0)
            self._writer.close(linger=0)
            self._read_context.term()
            self._write_context.term()
            wire.remove_directory(self._directory)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
