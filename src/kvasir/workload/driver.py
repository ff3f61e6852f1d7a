"""Plays requests on an engine in this process and keeps what came back and when."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvasir.core.errors import KvasirError
from kvasir.core.events import Event, RequestFinishedEvent, TokensEvent
from kvasir.core.request import Request


class SteppedEngine(Protocol):
    """As much of an engine as a load needs."""

    @property
    def has_work(self) -> bool: ...

    def add_request(self, request: Request) -> None: ...

    def step(self) -> list[Event]: ...


@dataclass(slots=True, kw_only=True)
class LoadResult:
    """``finished`` in order of ending.  ``token_ids`` by (request id, index); ``token_times_s`` since the start."""

    duration_s: float = 0.0
    num_steps: int = 0
    finished: list[RequestFinishedEvent] = field(default_factory=list)
    token_ids: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    token_times_s: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    @property
    def num_output_tokens(self) -> int:
        return sum(len(ids) for ids in self.token_ids.values())

    @property
    def output_tokens_per_s(self) -> float:
        return self.num_output_tokens / self.duration_s

    def ttft_s(self, request_id: str) -> float:
        """Seconds from the start of the load to the first token of the request."""
        return min(times[0] for (owner, _), times in self.token_times_s.items() if owner == request_id)


def play(
    engine: SteppedEngine, requests: Sequence[Request], on_step: Callable[[LoadResult], None] | None = None
) -> LoadResult:
    """All requests arrive at once; returns when the last has ended.  ``on_step`` sees the result so far
    after every step.

    Raises ``KvasirError`` when a request is refused or ends with an error: a load that lost requests measures nothing.
    """
    result = LoadResult()
    start = time.perf_counter()
    for request in requests:
        engine.add_request(request)
    while engine.has_work:
        events = engine.step()
        now_s = time.perf_counter() - start
        result.num_steps += 1
        for event in events:
            _take(result, event, now_s)
        if on_step is not None:
            on_step(result)
    result.duration_s = time.perf_counter() - start
    if len(result.finished) != len(requests):
        raise KvasirError(f"{len(requests)} requests were played, but {len(result.finished)} ended.")
    return result


def _take(result: LoadResult, event: Event, now_s: float) -> None:
    if isinstance(event, TokensEvent):
        key = (event.request_id, event.index)
        result.token_ids.setdefault(key, []).extend(event.token_ids)
        result.token_times_s.setdefault(key, []).extend([now_s] * len(event.token_ids))
    elif isinstance(event, RequestFinishedEvent):
        if event.error is not None:
            raise KvasirError(f"Request {event.request_id} ended with an error: {event.error}")
        result.finished.append(event)
    else:
        raise KvasirError(f"Request {event.request_id} was refused: {event.message}")
