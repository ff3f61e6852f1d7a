"""Where simulated requests come from: the trace's times, a fixed number of clients, or sessions that think."""

import heapq
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from kvasir.workload.traces.trace import Trace, TraceRequest


class ArrivalSource(Protocol):
    """Asked for requests in order of time; told when they end, because some loads wait for answers."""

    @property
    def waits_for_answers(self) -> bool:
        """The end of a request may bring another."""
        ...

    def next_s(self) -> float | None:
        """When the next request arrives; None when none is known to come (an end may bring one)."""
        ...

    def take(self) -> TraceRequest:
        """The next request.  Its ``arrival_s`` is when it arrives."""
        ...

    def on_end(self, request_id: str, now_s: float) -> None:
        """The request was answered or refused at ``now_s``."""
        ...


class OpenLoop:
    """Requests come at the trace's times, whatever happens to those before."""

    waits_for_answers = False

    def __init__(self, trace: Trace) -> None:
        self._requests = deque(trace.requests)

    def next_s(self) -> float | None:
        return self._requests[0].arrival_s if self._requests else None

    def take(self) -> TraceRequest:
        return self._requests.popleft()

    def on_end(self, request_id: str, now_s: float) -> None:
        """Nobody waits for answers."""


class ClosedLoop:
    """``num_clients`` clients take the trace's sessions in order, one at a time, and send a session's next request
    ``think_s`` after the answer to the one before.  A request without a session is a session of its own."""

    waits_for_answers = True

    def __init__(self, trace: Trace, num_clients: int) -> None:
        self._sessions = deque(_sessions(trace.requests))
        self._coming: list[tuple[float, int, TraceRequest]] = []
        self._rest: dict[str, deque[TraceRequest]] = {}
        """By id of a session's latest request: what follows it."""
        self._sent: set[str] = set()
        self._serial = 0
        for _ in range(num_clients):
            self._begin_session(0.0)

    def next_s(self) -> float | None:
        return self._coming[0][0] if self._coming else None

    def take(self) -> TraceRequest:
        return heapq.heappop(self._coming)[2]

    def on_end(self, request_id: str, now_s: float) -> None:
        rest = self._rest.pop(request_id)
        if rest:
            self._send(rest, now_s + rest[0].think_s)
        else:
            self._begin_session(now_s)

    def _begin_session(self, now_s: float) -> None:
        if self._sessions:
            self._send(self._sessions.popleft(), now_s)

    def _send(self, session: deque[TraceRequest], arrival_s: float) -> None:
        request = session.popleft()
        self._rest[request.request_id] = session
        self._serial += 1
        heapq.heappush(self._coming, (arrival_s, self._serial, _at(request, arrival_s)))


def _at(request: TraceRequest, arrival_s: float) -> TraceRequest:
    return TraceRequest(
        request_id=request.request_id,
        arrival_s=arrival_s,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_output_tokens,
        hash_ids=request.hash_ids,
        session_id=request.session_id,
        think_s=request.think_s,
    )


def _sessions(requests: Iterable[TraceRequest]) -> list[deque[TraceRequest]]:
    """In order of their first request."""
    found: dict[str, deque[TraceRequest]] = {}
    for request in requests:
        name = f"request {request.request_id}" if request.session_id is None else f"session {request.session_id}"
        found.setdefault(name, deque()).append(request)
    return list(found.values())
