"""Server-sent events: the answer as it comes, and its orderly end whatever happens."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvasir.core.errors import KvasirError
from kvasir.server.disconnect import ClientGoneError, unless_disconnected
from kvasir.server.errors import error_body, internal_error

logger = logging.getLogger("kvasir.server")

DONE = b"data: [DONE]\n\n"
_encode_json = msgspec.json.Encoder().encode


def frame(payload: Any) -> bytes:
    """One event.  JSON escapes line breaks, so a payload is always one line."""
    return b"data: " + _encode_json(payload) + b"\n\n"


class EventStream(Response):
    """Sends ``events`` (already framed bytes), then ``[DONE]``.

    An error on the way becomes an event with an ``error`` object before ``[DONE]``.  ``send`` waits for a slow reader,
    so what is buffered here is at most one item of ``events``.  ``on_end`` is called once, however the stream ends, the
    client's going away before the first event included: it aborts the work behind the stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], on_end: Callable[[], None], headers: dict[str, str]
    ) -> None:
        super().__init__(status_code=200, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"} | headers)
        del self.headers["content-length"]
        self._events = events
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send_all(send))
        except ClientGoneError:
            logger.debug("client of %s went away", scope["path"])
        finally:
            self._on_end()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

        async def send_part(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        async with aclosing(self._events) as events:
            try:
                async for data in events:
                    await send_part(data)
            except KvasirError as error:
                await send_part(frame(error_body(error)))
            except Exception:
                logger.exception("a stream broke")
                await send_part(frame(error_body(internal_error())))
        await send({"type": "http.response.body", "body": DONE, "more_body": False})
