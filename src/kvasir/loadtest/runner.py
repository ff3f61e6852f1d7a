"""Plays prepared conversations at their times, under a cap, until the end, the stop signal or the server's death."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kvasir.loadtest.client import Answer, Client, Tally
from kvasir.loadtest.plan import Transcript
from kvasir.loadtest.prepared import PreparedSession, PreparedTurn, reply_body
from kvasir.loadtest.record import Failure, FailureKind, Place, Record
from kvasir.loadtest.target import BodyMaker

_GONE_AFTER_TRIES = 4
_BETWEEN_TRIES_S = 0.5


class EndReason(Enum):
    DONE = "done"
    TIME_UP = "time is up"
    INTERRUPTED = "interrupted"
    SERVER_GONE = "the server is gone"

    @property
    def is_orderly(self) -> bool:
        return self in (EndReason.DONE, EndReason.TIME_UP)


class Stop:
    """Ends a load from outside; the first reason counts."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason: EndReason | None = None

    def set(self, reason: EndReason) -> None:
        if self.reason is None:
            self.reason = reason
            self._event.set()

    @property
    def is_set(self) -> bool:
        return self.reason is not None

    async def wait(self) -> None:
        await self._event.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """``arrivals_s``: when each conversation is to begin.  ``max_concurrency``: conversations in progress at once; the
    next one begins when one ends.  After ``max_duration_s`` nothing new is sent, and what runs may end."""

    arrivals_s: Sequence[float]
    max_concurrency: int | None = None
    max_duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """``records`` in the order of their ends.  ``duration_s``: from the start to the end of the last request.
    ``started_at`` is Unix time."""

    records: tuple[Record, ...]
    num_planned: int
    duration_s: float
    end_reason: EndReason
    started_at: float


class LoadRunner:
    """Plays one load."""

    def __init__(self, client: Client, bodies: BodyMaker, stop: Stop) -> None:
        self._client = client
        self._bodies = bodies
        self._stop = stop
        self._records: list[Record] = []
        self._reachable = asyncio.Event()
        self._reachable.set()
        self._check: asyncio.Task[None] | None = None
        self._started_s = 0.0
        self._ends_s = float("inf")
        self._was_time_up = False
        self.tally = Tally()

    async def play(self, sessions: Sequence[PreparedSession], pace: Pace) -> Played:
        """When stopped, requests in flight are closed and kept as aborted."""
        started_at = time.time()
        self._started_s = time.perf_counter()
        if pace.max_duration_s is not None:
            self._ends_s = pace.max_duration_s
        if not self._stop.is_set:
            await self._until_stopped(sessions, pace)
        return Played(
            records=tuple(self._records),
            num_planned=sum(len(session.turns) for session in sessions),
            duration_s=max((record.end_s for record in self._records), default=0.0),
            end_reason=self._stop.reason or (EndReason.TIME_UP if self._was_time_up else EndReason.DONE),
            started_at=started_at,
        )

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._started_s if self._started_s else 0.0

    async def _until_stopped(self, sessions: Sequence[PreparedSession], pace: Pace) -> None:
        sending = asyncio.create_task(self._send_all(sessions, pace))
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({sending, stopped}, return_when=asyncio.FIRST_COMPLETED)
        tasks = [task for task in (sending, stopped, self._check) if task is not None]
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _send_all(self, sessions: Sequence[PreparedSession], pace: Pace) -> None:
        slots = asyncio.Semaphore(pace.max_concurrency or len(sessions) or 1)
        async with asyncio.TaskGroup() as group:
            for number, (session, arrival_s) in enumerate(zip(sessions, pace.arrivals_s, strict=True)):
                if arrival_s > self._ends_s:
                    self._was_time_up = True
                    return
                await self._sleep_until(arrival_s)
                await slots.acquire()
                if self._is_time_up():
                    return
                group.create_task(self._converse(number, session, arrival_s, slots))

    async def _converse(
        self, number: int, session: PreparedSession, arrival_s: float, slots: asyncio.Semaphore
    ) -> None:
        try:
            transcript = session.transcript()
            planned_s = arrival_s
            for index, turn in enumerate(session.turns):
                if index:
                    planned_s = self.elapsed_s + turn.think_s
                    await asyncio.sleep(turn.think_s)
                if index and self._is_time_up():
                    return
                body = self._body(session, turn, transcript)
                place = Place(session=number, turn=index + 1, planned_s=planned_s)
                answer = await self._ask(place, turn, body)
                if answer.failure is not None:
                    return  # a conversation with a hole would not be the planned one
                if session.grows:
                    transcript.reply(answer.text)
        finally:
            slots.release()

    def _body(self, session: PreparedSession, turn: PreparedTurn, transcript: Transcript) -> bytes:
        if turn.body is None:
            return reply_body(turn, transcript, self._bodies)
        if session.grows:
            transcript.ask(turn.text)
        return turn.body

    async def _ask(self, place: Place, turn: PreparedTurn, body: bytes) -> Answer:
        await self._reachable.wait()
        answer = Answer(place, turn.num_prompt_tokens, self.tally)
        try:
            await self._client.send(body, answer)
        finally:
            record = answer.record(self._started_s)
            self._records.append(record)
            self.tally.ended(record)
        if answer.failure is not None:
            self._look_after(answer.failure)
        return answer

    def _look_after(self, failure: Failure) -> None:
        """When connections fail, nothing more is sent until one succeeds: a dead server must not eat the whole load."""
        if failure.kind not in (FailureKind.CONNECT, FailureKind.CUT_OFF):
            return
        if self._check is None or self._check.done():
            self._reachable.clear()
            self._check = asyncio.create_task(self._check_server())

    async def _check_server(self) -> None:
        for _ in range(_GONE_AFTER_TRIES):
            if await self._client.pool.can_connect():
                self._reachable.set()
                return
            await asyncio.sleep(_BETWEEN_TRIES_S)
        self._stop.set(EndReason.SERVER_GONE)

    def _is_time_up(self) -> bool:
        if self.elapsed_s > self._ends_s:
            self._was_time_up = True
            return True
        return False

    async def _sleep_until(self, at_s: float) -> None:
        wait_s = at_s - self.elapsed_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)
