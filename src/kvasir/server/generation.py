"""One HTTP request on its way through the engine: prompts in, text of numbered choices out, usage, exactly one end."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from kvasir.core.errors import KvasirError
from kvasir.core.events import RequestFinishedEvent, RequestRefusedEvent, TokensEvent
from kvasir.core.request import Request
from kvasir.core.sequence import FinishReason
from kvasir.server.engine_client import AbortCause, EngineClient
from kvasir.server.errors import RefusedByEngineError
from kvasir.server.finished import make_usage
from kvasir.server.mailbox import Delivery, Mailbox
from kvasir.server.messages import Admitted
from kvasir.server.responses import Usage
from kvasir.text.output import OutputAssembler, TextDelta
from kvasir.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What one choice gained.  Choices are numbered prompt by prompt: prompt 0's n first, then prompt 1's."""

    choice: int
    delta: TextDelta


class Generation:
    """``admit``, then iterate ``deltas`` to the end, then ``usage`` is whole; ``close`` aborts what still runs.

    All requests carry the same sampling settings and differ in their prompts.  With ``shows_token_ids`` a delta comes
    for every generated token, otherwise only when there is text or an end to tell.
    """

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        requests: Sequence[Request],
        *,
        is_continuation: bool,
        shows_token_ids: bool = False,
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._n = requests[0].sampling.n
        self.shows_token_ids = shows_token_ids
        self._position = {request.request_id: number for number, request in enumerate(requests)}
        self._mailbox = Mailbox()
        self._unfinished: set[str] = set()
        self._early: list[Delivery] = []
        self._num_cached_tokens = 0
        self.assemblers = [
            OutputAssembler(tokenizer, request.sampling, is_continuation=is_continuation)
            for request in requests
            for _ in range(self._n)
        ]

    async def admit(self) -> None:
        """Return when the engine has accepted every prompt; raise its refusal and take back the others."""
        try:
            for request in self._requests:
                self._engine.submit(request, self._mailbox)
                self._unfinished.add(request.request_id)
            num_admitted = 0
            while num_admitted < len(self._requests):
                for delivery in await self._mailbox.take():
                    if isinstance(delivery, Admitted):
                        num_admitted += 1
                    else:
                        self._early.append(delivery)
                    self._raise_if_failed(delivery)
        except BaseException as error:
            self.close(_cause(error))
            raise

    async def deltas(self) -> AsyncGenerator[list[ChoiceDelta], None]:
        """Everything new since the last time, never empty.  Leaving early, for whatever reason, aborts the rest."""
        try:
            arrived, self._early = self._early, []
            while True:
                changed = [change for delivery in arrived if (change := self._take(delivery)) is not None]
                if changed:
                    yield changed
                if not self._unfinished:
                    return
                arrived = await self._mailbox.take()
        except BaseException as error:
            self.close(_cause(error))
            raise

    async def run_to_end(self) -> None:
        """For answers in one piece: everything is in ``assemblers`` then."""
        async with aclosing(self.deltas()) as deltas:
            async for _ in deltas:
                pass

    def close(self, cause: AbortCause) -> None:
        """Abort the requests that have not ended.  Idempotent."""
        for request_id in self._unfinished:
            self._engine.abort(request_id, cause)
        self._unfinished.clear()

    @property
    def num_choices(self) -> int:
        return len(self.assemblers)

    @property
    def usage(self) -> Usage:
        num_prompt = sum(len(request.prompt_token_ids) for request in self._requests)
        return make_usage(num_prompt, self._num_cached_tokens, self.assemblers)

    def _take(self, delivery: Delivery) -> ChoiceDelta | None:
        self._raise_if_failed(delivery)
        if isinstance(delivery, RequestFinishedEvent):
            self._unfinished.discard(delivery.request_id)
            self._num_cached_tokens += delivery.num_cached_tokens
            return None
        if not isinstance(delivery, TokensEvent) or delivery.finish_reason is FinishReason.ERROR:
            return None  # a failure is told once, by the request's own end
        choice = self._position[delivery.request_id] * self._n + delivery.index
        delta = self.assemblers[choice].push(delivery)
        if delta.must_stop_engine:
            self._engine.stop_sequence(delivery.request_id, delivery.index)
        is_news = not delta.is_empty or (self.shows_token_ids and delta.token_ids)
        return ChoiceDelta(choice, delta) if is_news else None

    def _raise_if_failed(self, delivery: Delivery) -> None:
        if isinstance(delivery, RequestRefusedEvent):
            self._unfinished.discard(delivery.request_id)
            raise RefusedByEngineError(
                delivery.message, code=delivery.code, http_status=delivery.http_status, param=delivery.param
            )
        if isinstance(delivery, RequestFinishedEvent) and delivery.finish_reason is FinishReason.ERROR:
            self._unfinished.discard(delivery.request_id)
            raise KvasirError(f"The request failed in the engine: {delivery.error}.")


def _cause(error: BaseException) -> AbortCause:
    """A fault is an ``Exception``; cancellation and a closed generator mean that the client went away."""
    return AbortCause.FAILED if isinstance(error, Exception) else AbortCause.CLIENT_GONE
