"""What happens before a route: the key, and the size of the body.  Plain ASGI, so that disconnects pass through."""

import asyncio
import secrets
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvasir.core.errors import KvasirError
from kvasir.server.errors import RequestTooLargeError, UnauthorizedError, error_response

_DISCARD_FACTOR = 4
_DISCARD_S = 10.0


OPEN_PATHS = frozenset({"/health", "/metrics", "/version"})


class ApiKeyGate:
    """Asks for ``Authorization: Bearer KEY`` everywhere but on ``OPEN_PATHS``, which probes and dashboards read."""

    def __init__(self, app: ASGIApp, api_key: str, on_refused: Callable[[str], None]) -> None:
        self._app = app
        self._on_refused = on_refused
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = Headers(scope=scope).get("authorization", "")
            if not secrets.compare_digest(given.encode("latin-1"), self._expected):
                error = UnauthorizedError("This server needs its API key: send it as 'Authorization: Bearer KEY'.")
                self._on_refused(error.code)
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimit:
    """Answers 413 to bodies over ``max_bytes`` without keeping them; the length header alone is enough to refuse."""

    def __init__(self, app: ASGIApp, max_bytes: int, on_refused: Callable[[str], None]) -> None:
        self._app = app
        self._on_refused = on_refused
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_bytes:
            if headers.get("expect", "").lower() != "100-continue":
                await self._discard(receive)
            self._on_refused(RequestTooLargeError.code)
            await error_response(self._refusal())(scope, receive, send)
            return
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                if message.get("more_body", False):
                    await self._discard(receive)
                raise self._refusal()
            return message

        await self._app(scope, counted, send)

    def _refusal(self) -> KvasirError:
        return RequestTooLargeError(
            f"The request body is larger than {self._max_bytes} bytes (--max-request-bytes of this server)."
        )

    async def _discard(self, receive: Receive) -> None:
        """Read on for a while, so that a client still writing gets to read the refusal instead of a reset."""
        num_bytes = 0

        async def drain() -> None:
            nonlocal num_bytes
            while num_bytes <= _DISCARD_FACTOR * self._max_bytes:
                message = await receive()
                num_bytes += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return

        try:
            await asyncio.wait_for(drain(), _DISCARD_S)
        except TimeoutError:
            return
