"""A server as a child of its worker: start it, wait until it answers, end it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time

from side_by_side.adapters import http_stream

PATIENCE_S = 240.0
POLL_S = 0.03
GRACE_S = 15.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((http_stream.HOST, 0))
        return probe.getsockname()[1]


class ServerProcess:
    """``started_s`` is taken just before the program is started; what it prints goes to our standard error."""

    def __init__(self, command: list[str], port: int, environment: dict[str, str]) -> None:
        self.port = port
        self.started_s = time.monotonic()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            stderr=sys.stderr,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_until_up(self, health: str = "/health") -> None:
        """Return when ``health`` answers 200; raise ``SystemExit`` when the server ends or takes too long."""
        while True:
            try:
                await http_stream.get(self.port, health)
                return
            except (OSError, http_stream.HttpFailure, asyncio.IncompleteReadError):
                pass
            if self._process.poll() is not None:
                raise SystemExit(f"the server ended with {self._process.returncode}")
            if time.monotonic() - self.started_s > PATIENCE_S:
                self.end()
                raise SystemExit(f"the server did not come up in {PATIENCE_S:.0f} s")
            await asyncio.sleep(POLL_S)

    def end(self) -> None:
        """Its whole process group, gently first."""
        if self._process.poll() is not None:
            return
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
