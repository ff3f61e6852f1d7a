"""Work that ends when its client goes away: the socket is watched while we compute."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class ClientGoneError(Exception):
    """The client closed its socket before the answer was complete."""


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the server reports the client gone; the request body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``; when the client goes first, ``work`` is cancelled, its clean-up awaited, and
    ``ClientGoneError`` raised."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        await _end(watching)
        await _end(working)


async def _end(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # Read where it matters; here only so that asyncio does not report it as lost.
