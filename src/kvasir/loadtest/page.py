"""Plain requests beside the load: what a server lists, measures and can be told."""

import asyncio

from kvasir.loadtest.connection import ConnectError, ConnectionPool, ServerClosedError


class _Page:
    """A plain response, collected."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        self.status = status

    def on_body(self, data: bytes, now_s: float) -> None:
        self.body += data


async def ask_page(pool: ConnectionPool, request: bytes, timeout_s: float = 10.0) -> tuple[int, str]:
    """Status and text of the response; (0, reason) when none came."""
    page = _Page()
    try:
        async with asyncio.timeout(timeout_s):
            await pool.exchange(request, page)
    except (ConnectError, ServerClosedError) as error:
        return 0, str(error)
    except TimeoutError:
        return 0, f"no answer within {timeout_s:g} s"
    return page.status, page.body.decode("utf-8", "replace")
