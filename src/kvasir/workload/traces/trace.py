"""A trace in our words: when requests came, how long they were, and what their prompts share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from kvasir.core.errors import KvasirError


class TraceError(KvasirError):
    """A trace file that cannot be read as what it claims to be; the message names file, line and reason."""

    code = "invalid_trace"


class IdRuns(Sequence[int]):
    """Block ids as runs of consecutive numbers: agentic prompts have thousands of ids and few runs."""

    __slots__ = ("_length", "_runs")

    def __init__(self, runs: Sequence[range]) -> None:
        self._runs = tuple(runs)
        self._length = sum(map(len, self._runs))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._runs)

    def __getitem__(self, index):
        """One id, or a tuple of them for a slice."""
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One recorded request.  ``arrival_s`` counts from the start of the trace.

    ``hash_ids[i]`` names block i of the prompt *and everything before it* (``Trace.hash_block_size`` tokens a block):
    equal ids mean equal prefixes.  A last, partly filled block may have an id or none.  Empty: nothing is known, and
    the prompt shares nothing.  Requests of one ``session_id`` follow each other; ``think_s`` is the pause between the
    end of the one before and this one.
    """

    request_id: str
    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: Sequence[int] = ()
    session_id: str | None = None
    think_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival.  ``hash_block_size`` is 0 when no request has ids; ``has_times`` is false when the
    file had lengths only and all arrivals are 0."""

    name: str
    requests: tuple[TraceRequest, ...]
    hash_block_size: int = 0
    has_times: bool = True

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def duration_s(self) -> float:
        return self.requests[-1].arrival_s - self.requests[0].arrival_s if self.requests else 0.0

    @property
    def num_prompt_tokens(self) -> int:
        return sum(request.num_prompt_tokens for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        return sum(request.num_output_tokens for request in self.requests)

    @property
    def rate(self) -> float:
        """Requests a second over the whole trace; infinite when all arrive at once."""
        return len(self.requests) / self.duration_s if self.duration_s > 0 else float("inf")

    def head(self, num_requests: int) -> "Trace":
        return replace(self, requests=self.requests[:num_requests])

    def faster(self, factor: float) -> "Trace":
        """The same requests in 1 / ``factor`` of the time; pauses inside sessions shrink alike."""
        if factor <= 0:
            raise TraceError(f"A trace can be played {factor} times as fast only if that is above 0.")
        return replace(
            self,
            requests=tuple(
                replace(request, arrival_s=request.arrival_s / factor, think_s=request.think_s / factor)
                for request in self.requests
            ),
        )

    def at(self, arrivals_s: Sequence[float]) -> "Trace":
        """The same requests in the same order, arriving at ``arrivals_s`` (ascending, one for each)."""
        return replace(
            self,
            has_times=True,
            requests=tuple(
                replace(request, arrival_s=arrival_s)
                for request, arrival_s in zip(self.requests, arrivals_s, strict=True)
            ),
        )

    def where(self, keep: Callable[[TraceRequest], bool]) -> "Trace":
        return replace(self, requests=tuple(request for request in self.requests if keep(request)))


def in_order(requests: list[TraceRequest]) -> tuple[TraceRequest, ...]:
    """Sorted by arrival (stable), with the first arrival at 0."""
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    start_s = ordered[0].arrival_s if ordered else 0.0
    if start_s == 0.0:
        return tuple(ordered)
    return tuple(replace(request, arrival_s=request.arrival_s - start_s) for request in ordered)
