"""What became of one request: its times, its tokens and who counted them, or how it failed."""

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from kvasir.workload.latency import RequestTiming


class FailureKind(Enum):
    CONNECT = "no connection"
    HTTP = "http"
    TIMEOUT = "timeout"
    CUT_OFF = "cut off"
    STREAM_ERROR = "error in the stream"
    NOT_A_STREAM = "not an event stream"
    NO_OUTPUT = "no output"
    ABORTED = "aborted"
    """The run was stopped while the answer came; no fault of the server's."""


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    message: str
    status: int = 0

    @property
    def label(self) -> str:
        """The kind, for HTTP errors with their status: ``http 429``."""
        return f"{self.kind.value} {self.status}" if self.kind is FailureKind.HTTP else self.kind.value


class CountedBy(Enum):
    USAGE = "usage"
    """The server's own count."""
    CHUNKS = "chunks"
    """One token for each chunk with output: too low when the server sends several tokens a chunk."""
    PLAN = "plan"
    """What was meant to be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which request of the load: conversation ``session``, its ``turn`` (from 1), and when it was to be sent."""

    session: int
    turn: int
    planned_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Times are seconds since the load began.

    ``chunk_times_s``: chunks that carried output.  ``end_s``: the last chunk of a choice, the one with the finish
    reason included; for failures, when it failed.  ``num_cached_tokens`` is None when the server does not say.
    """

    place: Place
    sent_s: float
    connect_s: float
    chunk_times_s: tuple[float, ...]
    end_s: float
    num_prompt_tokens: int
    prompt_counted_by: CountedBy
    num_output_tokens: int
    output_counted_by: CountedBy
    num_cached_tokens: int | None
    text: str
    finish_reason: str | None
    failure: Failure | None

    @property
    def is_ok(self) -> bool:
        return self.failure is None

    @property
    def is_aborted(self) -> bool:
        return self.failure is not None and self.failure.kind is FailureKind.ABORTED

    @property
    def ttft_s(self) -> float | None:
        """Sending to the first output; None when none came."""
        return self.chunk_times_s[0] - self.sent_s if self.chunk_times_s else None

    @property
    def itls_s(self) -> list[float]:
        """Gaps between chunks with output."""
        times = self.chunk_times_s
        return [later - earlier for earlier, later in pairwise(times)]

    @property
    def timing(self) -> RequestTiming:
        """Of a request that is ok."""
        assert self.failure is None and self.chunk_times_s
        return RequestTiming(
            ttft_s=self.chunk_times_s[0] - self.sent_s,
            e2e_s=self.end_s - self.sent_s,
            num_output_tokens=self.num_output_tokens,
        )
