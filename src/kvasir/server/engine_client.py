"""Requests in flight between the HTTP side and the engine.

Who waits for what, and what they are told when the engine does not answer.  Everything here runs on the event loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Any, ClassVar

from kvasir.core.errors import ConfigError, EngineDeadError, KvasirError, ModelError
from kvasir.core.events import RequestFinishedEvent
from kvasir.core.progress import Progress, no_progress
from kvasir.core.request import Request
from kvasir.engine.config import EngineConfig
from kvasir.server import messages
from kvasir.server.engine_handle import EngineHandle
from kvasir.server.errors import ShuttingDownError
from kvasir.server.health import Health, HealthStatus, StallWatch
from kvasir.server.mailbox import Mailbox
from kvasir.server.metrics import RequestTimes, ServerMetrics

logger = logging.getLogger("kvasir.server")

_START_ERRORS: dict[str, type[KvasirError]] = {error.code: error for error in (ConfigError, ModelError)}
_REFUSED_GRACE_S = 2.0


class AbortCause(Enum):
    """Why the HTTP side ended a request before the engine did."""

    CLIENT_GONE = "client_gone"
    FAILED = "failed"
    """Another part of the same HTTP request failed."""


@dataclass(slots=True)
class InFlight:
    """One engine request between ``submit`` and its terminal event."""

    request: Request
    mailbox: Mailbox
    times: RequestTimes
    abort_cause: AbortCause | None = None


class EngineClient:
    """Start it with ``start``, end it with ``close``.  ``health`` is always true at the moment it is read."""

    metrics: ServerMetrics
    """There once the engine is ready."""
    model_name: str
    """What clients call the model; there once the engine is ready."""

    def __init__(self, handle: EngineHandle, served_model_name: str | None, stall_timeout_s: float) -> None:
        self._handle = handle
        self._served_model_name = served_model_name
        self._in_flight: dict[str, InFlight] = {}
        self._health = Health(HealthStatus.LOADING)
        self._stall_watch = StallWatch(stall_timeout_s)
        self._calls: dict[int, asyncio.Future[None]] = {}
        self._call_ids = count()
        self._on_progress: Progress = no_progress
        self._ready: asyncio.Future[messages.Ready] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        served_model_name: str | None = None,
        stall_timeout_s: float = 60.0,
        on_progress: Progress = no_progress,
    ) -> "EngineClient":
        """Spawn the engine and wait until it is ready.

        Raises what the engine refuses with (``ConfigError``, ``ModelError``) or ``EngineDeadError``; nothing is left
        behind then, nor when the wait is cancelled.
        """
        client = cls(await EngineHandle.spawn(), served_model_name, stall_timeout_s)
        client._on_progress = on_progress
        try:
            client._tasks.append(asyncio.create_task(client._listen()))
            client._handle.send(messages.Start(config=config))
            await client._ready
        except BaseException as error:
            # An engine that refused to start is ending by itself; one that is loading would not look up.
            await client.close(grace_s=_REFUSED_GRACE_S if isinstance(error, KvasirError) else 0.0)
            raise
        client._tasks.append(asyncio.create_task(client._watch()))
        return client

    @property
    def ready(self) -> messages.Ready:
        """What the engine said of itself when it was ready."""
        return self._ready.result()

    @property
    def engine_pid(self) -> int:
        return self._handle.pid

    @property
    def health(self) -> Health:
        return self._health

    def check(self) -> None:
        """Raise when a request submitted now could not be answered."""
        if self._health.status is HealthStatus.STOPPING:
            raise ShuttingDownError("The server is shutting down.")
        if not self._health.is_ok:
            raise EngineDeadError(self._health.reason or f"The engine is {self._health.status.value}.")

    def submit(self, request: Request, mailbox: Mailbox) -> None:
        """``mailbox`` gets ``Admitted`` and the request's events, or the refusal.  Raises as ``check`` does."""
        self.check()
        self._in_flight[request.request_id] = InFlight(request, mailbox, RequestTimes(request.arrival_s))
        self._handle.send(messages.Submit(request=request))

    def abort(self, request_id: str, cause: AbortCause) -> None:
        """Idempotent, also for requests that have ended.  The terminal event still comes."""
        in_flight = self._in_flight.get(request_id)
        if in_flight is not None and in_flight.abort_cause is None:
            in_flight.abort_cause = cause
            self._handle.send(messages.Abort(request_id=request_id))

    def stop_sequence(self, request_id: str, index: int) -> None:
        """End one sequence as stopped; with its last one the request ends."""
        if request_id in self._in_flight:
            self._handle.send(messages.StopSequence(request_id=request_id, index=index))

    async def reset_prefix_cache(self) -> None:
        """Forget every cached block that no running request holds."""
        self.check()
        call_id = next(self._call_ids)
        self._calls[call_id] = asyncio.get_running_loop().create_future()
        self._handle.send(messages.ResetPrefixCache(call_id=call_id))
        try:
            await self._calls[call_id]
        finally:
            del self._calls[call_id]

    def stop_serving(self) -> None:
        """Refuse what comes and abort what is in flight; every waiting answer ends with ``shutting_down``."""
        self._health = Health(HealthStatus.STOPPING, "The server is shutting down.")
        self._fail_all(ShuttingDownError("The server is shutting down."))

    async def close(self, grace_s: float) -> None:
        """End the engine process (killed after ``grace_s``) and everything that waits for it."""
        self.stop_serving()
        await self._handle.close(grace_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _listen(self) -> None:
        try:
            status = await self._handle.listen(self._on_message)
            reason = f"The engine process ended with {_describe_exit(status)}."
        except Exception as error:  # The pipe is all we know the engine by: without it the engine is lost.
            logger.exception("cannot read what the engine says")
            reason = f"The engine process cannot be understood: {error}."
        if self._health.status not in (HealthStatus.STOPPING, HealthStatus.DEAD):
            self._die(reason)

    def _die(self, reason: str) -> None:
        error = EngineDeadError(reason)
        logger.error("%s", error)
        self._health = Health(HealthStatus.DEAD, str(error))
        if not self._ready.done():
            self._ready.set_exception(error)
        self._fail_all(error)

    def _fail_all(self, error: KvasirError) -> None:
        for request_id, in_flight in self._in_flight.items():
            in_flight.mailbox.fail(error)
            self.metrics.failed(is_cancelled=in_flight.abort_cause is AbortCause.CLIENT_GONE)
            self._handle.send(messages.Abort(request_id=request_id))
        self._in_flight.clear()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(error)

    async def _watch(self) -> None:
        """Turn red when the engine is silent, green when it is heard again."""
        interval_s = min(1.0, self._stall_watch.timeout_s / 4)
        while self._health.status in (HealthStatus.OK, HealthStatus.STALLED):
            await asyncio.sleep(interval_s)
            reason = self._stall_watch.observe(interval_s, has_work=bool(self._in_flight))
            if reason is not None and self._health.is_ok:
                logger.error("%s", reason)
                self._health = Health(HealthStatus.STALLED, reason)
                self._fail_all(EngineDeadError(reason))

    def _on_message(self, message: messages.FromEngine) -> None:
        self._stall_watch.sign(
            is_progress=isinstance(message, messages.Admitted)
            or (isinstance(message, messages.StepReport) and (message.step_s is not None or bool(message.refused)))
        )
        if self._health.status is HealthStatus.STALLED:
            logger.info("the engine is heard of again")
            self._health = Health(HealthStatus.OK)
        self._handlers[type(message)](self, message)

    def _on_load_progress(self, message: messages.LoadProgress) -> None:
        self._on_progress(message.stage, message.fraction)

    def _on_ready(self, message: messages.Ready) -> None:
        self.model_name = self._served_model_name or message.model_name
        self.metrics = ServerMetrics(self.model_name)
        self._health = Health(HealthStatus.OK)
        if not self._ready.done():
            self._ready.set_result(message)

    def _on_start_failed(self, message: messages.StartFailed) -> None:
        if not self._ready.done():
            self._ready.set_exception(_START_ERRORS.get(message.code, KvasirError)(message.message))

    def _on_admitted(self, message: messages.Admitted) -> None:
        in_flight = self._in_flight.get(message.request_id)
        if in_flight is not None:
            in_flight.mailbox.put(message)

    def _on_step(self, report: messages.StepReport) -> None:
        now_s = time.monotonic()
        self.metrics.stepped(report)
        for event in report.tokens:
            in_flight = self._in_flight.get(event.request_id)
            if in_flight is not None:
                self.metrics.generated(in_flight.times, event.index, len(event.token_ids), now_s)
                in_flight.mailbox.put(event)
        for ended in report.finished:
            in_flight = self._in_flight.pop(ended.request_id, None)
            if in_flight is not None:
                self._finish(in_flight, ended, now_s)
        for refused in report.refused:
            in_flight = self._in_flight.pop(refused.request_id, None)
            if in_flight is not None:
                in_flight.mailbox.put(refused)

    def _finish(self, in_flight: InFlight, ended: RequestFinishedEvent, now_s: float) -> None:
        is_cancelled = in_flight.abort_cause is AbortCause.CLIENT_GONE
        self.metrics.finished(in_flight.times, ended, now_s, is_cancelled=is_cancelled)
        in_flight.mailbox.put(ended)

    def _on_prefix_cache_reset(self, message: messages.PrefixCacheReset) -> None:
        call = self._calls.get(message.call_id)
        if call is not None and not call.done():
            call.set_result(None)

    def _on_engine_failed(self, message: messages.EngineFailed) -> None:
        self._die(f"The engine failed: {message.reason}.")

    _handlers: ClassVar[dict[type[messages.Message], Callable[["EngineClient", Any], None]]] = {
        messages.LoadProgress: _on_load_progress,
        messages.Ready: _on_ready,
        messages.StartFailed: _on_start_failed,
        messages.Admitted: _on_admitted,
        messages.StepReport: _on_step,
        messages.PrefixCacheReset: _on_prefix_cache_reset,
        messages.EngineFailed: _on_engine_failed,
    }


def _describe_exit(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
