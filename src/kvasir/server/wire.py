"""The two one-way ZeroMQ pipes between the processes, in a directory only this user can enter.

Each side binds what it reads and connects what it writes: a connected PUSH socket queues at once, so nobody has to wait
for the other to be there.  Queues are unbounded; what can be in them is bounded by the requests in flight.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import zmq

Socket = TypeVar("Socket", bound=zmq.Socket[Any])
"""Blocking or asyncio: the context decides."""

_TO_ENGINE = "to-engine"
_FROM_ENGINE = "from-engine"
_MAX_PATH_BYTES = 100
"""A Unix socket's path ends at 107 bytes on Linux, 103 on macOS."""


def make_directory() -> Path:
    """A fresh directory with mode 0700 for the socket files; under /tmp where the usual place has too long a path."""
    directory = Path(tempfile.mkdtemp(prefix="kvasir-"))
    if len(str(directory / _FROM_ENGINE).encode()) <= _MAX_PATH_BYTES:
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="kvasir-", dir="/tmp"))


def remove_directory(directory: Path) -> None:
    """Idempotent, and either process may do it: whoever goes last."""
    shutil.rmtree(directory, ignore_errors=True)


def make_writer(context: zmq.Context[Socket], directory: Path, *, to_engine: bool) -> Socket:
    """A PUSH socket whose ``send`` never blocks."""
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.connect(_address(directory, to_engine=to_engine))
    return socket


def make_reader(context: zmq.Context[Socket], directory: Path, *, to_engine: bool) -> Socket:
    """A PULL socket."""
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.bind(_address(directory, to_engine=to_engine))
    return socket


def _address(directory: Path, *, to_engine: bool) -> str:
    return f"ipc://{directory / (_TO_ENGINE if to_engine else _FROM_ENGINE)}"
