"""Sends one request and keeps the time of every chunk of its answer."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

import msgspec

from kvasir.loadtest.chunks import Chunk, Usage, decode_chunk, error_text
from kvasir.loadtest.connection import ConnectError, ConnectionPool, ServerClosedError
from kvasir.loadtest.record import CountedBy, Failure, FailureKind, Place, Record
from kvasir.loadtest.sse import EventParser
from kvasir.loadtest.target import Target

_SHOWN_BODY_BYTES = 300
_NUM_RECENT = 256


@dataclass(slots=True)
class Tally:
    """What a person watches while the load runs; ``recent_*`` are of the latest requests."""

    num_sent: int = 0
    num_running: int = 0
    num_ok: int = 0
    num_failed: int = 0
    num_chunks: int = 0
    recent_ttfts_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_RECENT))
    recent_tpots_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_RECENT))
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def num_done(self) -> int:
        return self.num_ok + self.num_failed

    def ended(self, record: Record) -> None:
        self.num_running -= 1
        if record.failure is not None:
            self.num_failed += 1
            self.failures[record.failure.label] = self.failures.get(record.failure.label, 0) + 1
            return
        self.num_ok += 1
        timing = record.timing
        self.recent_ttfts_s.append(timing.ttft_s)
        if timing.tpot_s is not None:
            self.recent_tpots_s.append(timing.tpot_s)


class Answer:
    """One request on its way: the receiver of its response, and in the end its record."""

    def __init__(self, place: Place, num_prompt_tokens: int, tally: Tally) -> None:
        self._place = place
        self._num_planned_tokens = num_prompt_tokens
        self._tally = tally
        self._events = EventParser()
        self._status = 0
        self._is_stream = False
        self._body = b""
        self._sent_s = 0.0
        self._connect_s = 0.0
        self._chunk_times_s: list[float] = []
        self._last_choice_s = 0.0
        self._failed_s = 0.0
        self._parts: list[str] = []
        self._finish_reason: str | None = None
        self._is_closed = False
        self._usage: Usage | None = None
        self._failure: Failure | None = None

    @property
    def text(self) -> str:
        return "".join(self._parts)

    @property
    def failure(self) -> Failure | None:
        return self._failure

    def start(self) -> None:
        self._sent_s = time.perf_counter()
        self._tally.num_sent += 1
        self._tally.num_running += 1

    def fail(self, kind: FailureKind, message: str, status: int = 0) -> None:
        """The first failure counts; what came before it is kept."""
        if self._failure is None:
            self._failure = Failure(kind, message, status)
            self._failed_s = time.perf_counter()

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        self._status = status
        self._is_stream = status == 200 and headers.get("content-type", "").startswith("text/event-stream")

    def on_body(self, data: bytes, now_s: float) -> None:
        if not self._is_stream:
            self._body += data
            return
        for event in self._events.feed(data):
            self._take(event, now_s)

    def ended(self, connect_s: float) -> None:
        """The response is whole; say whether it is an answer."""
        self._connect_s = connect_s
        if self._status != 200:
            self.fail(FailureKind.HTTP, _body_message(self._body) or f"HTTP {self._status}", self._status)
        elif not self._is_stream:
            self.fail(FailureKind.NOT_A_STREAM, _shown(self._body) or "an empty body")
        elif self._finish_reason is None and not self._is_closed:
            self.fail(FailureKind.CUT_OFF, "the stream ended without a finish reason and without [DONE]")
        elif not self._last_choice_s:
            self.fail(FailureKind.NO_OUTPUT, "the stream ended without any choice")

    def broke(self, message: str) -> None:
        """The connection ended early; after the last event that is only a server in a hurry."""
        if self._finish_reason is None or not self._is_closed:
            self.fail(FailureKind.CUT_OFF, message)

    def record(self, load_started_s: float) -> Record:
        times = tuple(at_s - load_started_s for at_s in self._chunk_times_s)
        end_s = (self._failed_s if self._failure is not None else self._last_choice_s) - load_started_s
        if not times and self._failure is None:
            times = (end_s,)  # an answer of no characters: its end is the first sign of it
        usage = self._usage or Usage()
        prompt_tokens, output_tokens = usage.prompt_tokens, usage.completion_tokens
        details = usage.prompt_tokens_details
        return Record(
            place=self._place,
            sent_s=self._sent_s - load_started_s,
            connect_s=self._connect_s,
            chunk_times_s=times,
            end_s=end_s,
            num_prompt_tokens=self._num_planned_tokens if prompt_tokens is None else prompt_tokens,
            prompt_counted_by=CountedBy.PLAN if prompt_tokens is None else CountedBy.USAGE,
            num_output_tokens=len(times) if output_tokens is None else output_tokens,
            output_counted_by=CountedBy.CHUNKS if output_tokens is None else CountedBy.USAGE,
            num_cached_tokens=None if details is None else details.cached_tokens,
            text=self.text,
            finish_reason=self._finish_reason,
            failure=self._failure,
        )

    def _take(self, event: bytes, now_s: float) -> None:
        if event == b"[DONE]":
            self._is_closed = True
            return
        try:
            chunk = decode_chunk(event)
        except msgspec.DecodeError as error:
            self.fail(FailureKind.STREAM_ERROR, f"an event is not a chunk ({error}): {_shown(event)}")
            return
        if chunk.error is not None:
            self.fail(FailureKind.STREAM_ERROR, error_text(chunk.error))
            return
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.choices:
            self._take_choices(chunk, now_s)

    def _take_choices(self, chunk: Chunk, now_s: float) -> None:
        self._last_choice_s = now_s
        has_output = False
        for choice in chunk.choices:
            if choice.finish_reason is not None:
                self._finish_reason = choice.finish_reason
            if choice.has_output:
                has_output = True
                self._parts.append(choice.output)
        if has_output:
            self._chunk_times_s.append(now_s)
            self._tally.num_chunks += 1


class Client:
    """Requests to one target; each takes at most ``timeout_s``."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        self.target = target
        self.pool = ConnectionPool(target.address)
        self._timeout_s = timeout_s

    async def send(self, body: bytes, answer: Answer) -> None:
        """Returns when the answer ended, well or not: it then knows its failure.  Cancelling closes the connection,
        which every server takes for a client that went away."""
        request = self.target.post(body)
        answer.start()
        try:
            async with asyncio.timeout(self._timeout_s):
                connect_s = await self.pool.exchange(request, answer)
        except TimeoutError:
            answer.fail(FailureKind.TIMEOUT, f"no end after {self._timeout_s:g} s")
        except ConnectError as error:
            answer.fail(FailureKind.CONNECT, str(error))
        except ServerClosedError as error:
            answer.broke(str(error))
        except asyncio.CancelledError:
            answer.fail(FailureKind.ABORTED, "the run was stopped")
            raise
        else:
            answer.ended(connect_s)

    def close(self) -> None:
        self.pool.close()


def _body_message(body: bytes) -> str:
    """The sentence in an error body, as OpenAI writes it (or FastAPI, under ``detail``); else its beginning."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return _shown(body)
    if isinstance(value, dict):
        for name in ("error", "detail", "message"):
            if value.get(name):
                return error_text(value[name])
    return _shown(body)


def _shown(data: bytes) -> str:
    return data[:_SHOWN_BODY_BYTES].decode("utf-8", "replace").strip()
