"""Where the events of one HTTP request wait for whoever answers it; its requests in the engine may be several."""

import asyncio

from kvasir.core.errors import KvasirError
from kvasir.core.events import RequestFinishedEvent, RequestRefusedEvent, TokensEvent
from kvasir.server.messages import Admitted

Delivery = Admitted | TokensEvent | RequestFinishedEvent | RequestRefusedEvent


class Mailbox:
    """One writer (the engine client), one reader, one event loop.

    A reader that is slow finds more at once, never less: what can pile up is bounded by ``max_tokens``.
    """

    def __init__(self) -> None:
        self._deliveries: list[Delivery] = []
        self._failure: KvasirError | None = None
        self._wake_up = asyncio.Event()

    def put(self, delivery: Delivery) -> None:
        self._deliveries.append(delivery)
        self._wake_up.set()

    def fail(self, failure: KvasirError) -> None:
        """Nothing more will come; the reader gets ``failure`` after what is here already."""
        self._failure = failure
        self._wake_up.set()

    async def take(self) -> list[Delivery]:
        """Everything that came since the last call, at least one; raises the failure once nothing is left."""
        await self._wake_up.wait()
        if not self._deliveries and self._failure is not None:
            raise self._failure
        taken, self._deliveries = self._deliveries, []
        if self._failure is None:
            self._wake_up.clear()
        return taken
