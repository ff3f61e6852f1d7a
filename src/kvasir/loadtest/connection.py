"""HTTP/1.1 connections kept for reuse; every piece of a response is stamped the moment the socket gives it."""

import asyncio
import resource
import ssl
import time
from dataclasses import dataclass
from typing import Protocol

from kvasir.loadtest.http_response import HttpError, ResponseParser

_MANY_FILES = 65_536


class ServerClosedError(Exception):
    """The connection ended, or broke HTTP, before the response was whole."""


class ConnectError(Exception):
    """No connection could be made."""


class Receiver(Protocol):
    """Gets a response while it comes.  ``now_s`` is ``time.perf_counter`` when the socket had the bytes."""

    def on_head(self, status: int, headers: dict[str, str]) -> None: ...

    def on_body(self, data: bytes, now_s: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    host: str
    port: int
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connection(asyncio.Protocol):
    """One connection; carries one exchange at a time.

    Parsing happens in the socket's own callback, not in a task that has to be woken: with many streams the order of
    wake-ups would otherwise be part of every time that is measured.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        self._receiver: Receiver | None = None
        self._done: asyncio.Future[None] | None = None
        self._has_head = False
        self._now_s = 0.0
        self.is_open = False

    async def exchange(self, request: bytes, receiver: Receiver) -> None:
        """Send ``request`` and return when the whole response went to ``receiver``.  Raises ``ServerClosedError``."""
        if self._transport is None or not self.is_open:
            raise ServerClosedError("the connection is closed")
        self._receiver = receiver
        self._has_head = False
        self._now_s = 0.0
        self._parser = ResponseParser(self._on_body)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._done
        if not self._parser.can_reuse:
            self.close()

    @property
    def has_response(self) -> bool:
        """Whether any byte of the present response came."""
        return self._now_s > 0.0

    def close(self) -> None:
        """At once, without a farewell: the server sees a client that went away."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._now_s = time.perf_counter()
        parser, done = self._parser, self._done
        if parser is None or done is None or done.done():
            self.close()  # bytes nobody asked for
            return
        try:
            parser.feed(data)
            self._show_head(parser)
        except HttpError as error:
            done.set_exception(ServerClosedError(str(error)))
            self.close()
            return
        if parser.is_done:
            done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._parser is None or self._done is None or self._done.done():
            return
        try:
            self._parser.feed_end()
        except HttpError as error:
            self._done.set_exception(ServerClosedError(f"{error} ({exc})" if exc else str(error)))
            return
        self._done.set_result(None)

    def _on_body(self, data: bytes) -> None:
        assert self._parser is not None and self._receiver is not None
        self._show_head(self._parser)
        self._receiver.on_body(data, self._now_s)

    def _show_head(self, parser: ResponseParser) -> None:
        if not self._has_head and parser.status >= 200:
            self._has_head = True
            assert self._receiver is not None
            self._receiver.on_head(parser.status, parser.headers)


def allow_many_connections() -> None:
    """Raise this process's limit of open files to what it may have; a thousand streams need as many sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class ConnectionPool:
    """Connections to one server; as many as there are exchanges at once."""

    def __init__(self, address: Address, connect_timeout_s: float = 10.0) -> None:
        self._address = address
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[Connection] = []

    async def exchange(self, request: bytes, receiver: Receiver) -> float:
        """Seconds that connecting took (0 for a kept connection).  Raises ``ConnectError``, ``ServerClosedError``.

        A kept connection may be closed by the server just as the request is written; when nothing was answered, the
        request goes out once more on a new one.  A cancelled exchange closes its connection.
        """
        connection = self._take_idle()
        if connection is not None:
            try:
                await self._exchange_on(connection, request, receiver)
                return 0.0
            except ServerClosedError:
                if connection.has_response:
                    raise
        started_s = time.perf_counter()
        connection = await self._connect()
        connect_s = time.perf_counter() - started_s
        await self._exchange_on(connection, request, receiver)
        return connect_s

    async def can_connect(self) -> bool:
        try:
            connection = await self._connect()
        except ConnectError:
            return False
        connection.close()
        return True

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _exchange_on(self, connection: Connection, request: bytes, receiver: Receiver) -> None:
        try:
            await connection.exchange(request, receiver)
        except BaseException:  # also a cancelled task: the server must see that nobody listens
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        address = self._address
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    Connection, address.host, address.port, ssl=address.tls, happy_eyeballs_delay=0.25
                )
        except TimeoutError:
            raise ConnectError(f"no connection to {address} within {self._connect_timeout_s:g} s") from None
        except OSError as error:
            raise ConnectError(f"no connection to {address}: {error.strerror or error}") from error
        return connection
