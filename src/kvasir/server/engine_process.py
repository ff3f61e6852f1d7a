"""The engine's own process: ``python -m kvasir.server.engine_process DIRECTORY``; started by ``EngineClient`` only.

One thread: read what came, do one step, report it.  Whatever happens between two steps happens here, so an abort takes
effect within one step.
"""

import gc
import logging
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import FrameType

import zmq

from kvasir.core.errors import KvasirError
from kvasir.core.events import Event, RequestFinishedEvent, RequestRefusedEvent, TokensEvent
from kvasir.engine.engine import Engine
from kvasir.server import messages, wire
from kvasir.server.parent_watch import watch_parent
from kvasir.server.readiness import describe

logger = logging.getLogger("kvasir.engine")

HEARTBEAT_MS = 1000


class EngineLoop:
    """Owns the engine and both pipes; ``run`` returns when told to shut down."""

    def __init__(self, directory: Path) -> None:
        self._context = zmq.Context()
        self._inbox = wire.make_reader(self._context, directory, to_engine=True)
        self._outbox = wire.make_writer(self._context, directory, to_engine=False)
        self._engine: Engine | None = None
        self._is_stopping = False
        self._is_audited = False

    def send(self, message: messages.Message) -> None:
        self._outbox.send(messages.encode(message))

    def stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        self._is_stopping = True

    def start(self) -> bool:
        """Wait for ``Start``, load the model, say ``Ready``.  False when the engine refuses to start."""
        start = messages.decode_to_engine(self._inbox.recv())
        if not isinstance(start, messages.Start):
            raise RuntimeError(f"the first message must be Start, got {type(start).__name__}")
        try:
            self._engine = Engine.from_config(start.config, progress=self._progress)
            self.send(describe(self._engine))
            self.send(messages.StepReport(stats=self._engine.stats()))
        except KvasirError as error:
            self.send(messages.StartFailed(code=error.code, message=str(error)))
            return False
        return True

    def run(self) -> None:
        """Until ``Shutdown`` or SIGTERM.  A broken law is not survived: it leaves as an exception."""
        assert self._engine is not None
        engine = self._engine
        while not self._is_stopping:
            if not engine.has_work and not self._inbox.poll(HEARTBEAT_MS):
                self._idle(engine)
            while not self._is_stopping and self._inbox.poll(0):
                self._handle(engine, messages.decode_to_engine(self._inbox.recv()))
            if engine.has_work and not self._is_stopping:
                started_s = time.perf_counter()
                events = engine.step()
                self._is_audited = False
                self.send(_report(engine, events, time.perf_counter() - started_s))
        engine.close()

    def close(self) -> None:
        """Deliver what was said last (a failure's reason), but do not wait for a reader who is gone."""
        self._inbox.close(linger=0)
        self._outbox.close(linger=1000)
        self._context.term()

    def _idle(self, engine: Engine) -> None:
        """A heartbeat; and once after work, every block is recounted while nobody waits for it."""
        self.send(messages.StepReport(stats=engine.stats()))
        if not self._is_audited:
            engine.audit()
            self._is_audited = True

    def _progress(self, stage: str, fraction: float) -> None:
        self.send(messages.LoadProgress(stage=stage, fraction=fraction))

    def _handle(self, engine: Engine, message: messages.ToEngine) -> None:
        if isinstance(message, messages.Submit):
            self._submit(engine, message)
        elif isinstance(message, messages.Abort):
            engine.abort(message.request_id)
        elif isinstance(message, messages.StopSequence):
            engine.stop_sequence(message.request_id, message.index)
        elif isinstance(message, messages.ResetPrefixCache):
            engine.reset_prefix_cache()
            self.send(messages.PrefixCacheReset(call_id=message.call_id))
        elif isinstance(message, messages.Shutdown):
            self.stop()
        else:
            raise RuntimeError(f"a second {type(message).__name__} message")

    def _submit(self, engine: Engine, message: messages.Submit) -> None:
        request = message.request
        try:
            engine.add_request(request)
        except KvasirError as error:
            refused = RequestRefusedEvent(
                request_id=request.request_id,
                code=error.code,
                message=str(error),
                http_status=error.http_status,
                param=getattr(error, "param", None),
            )
            self.send(messages.StepReport(stats=engine.stats(), refused=(refused,)))
        else:
            self.send(messages.Admitted(request_id=request.request_id))


def _report(engine: Engine, events: list[Event], step_s: float) -> messages.StepReport:
    return messages.StepReport(
        stats=engine.stats(),
        step_s=step_s,
        tokens=tuple(event for event in events if isinstance(event, TokensEvent)),
        finished=tuple(event for event in events if isinstance(event, RequestFinishedEvent)),
        refused=tuple(event for event in events if isinstance(event, RequestRefusedEvent)),
    )


def main() -> int:
    directory = Path(sys.argv[1])
    watch_parent(partial(wire.remove_directory, directory))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    loop = EngineLoop(directory)
    # Ctrl-C reaches the whole process group; the HTTP process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, loop.stop)
    try:
        if not loop.start():
            return 1
        # What the imports and the model made lives as long as the process: not to be walked by the collector.
        gc.freeze()
        loop.run()
    except BaseException as error:
        loop.send(messages.EngineFailed(reason=f"{type(error).__name__}: {error}"))
        raise
    finally:
        loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
