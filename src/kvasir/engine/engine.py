"""The engine: one scheduler, one block manager, one executor, stepped by whoever owns it."""

import time
from typing import Self

from kvasir.core.clock import Clock, MonotonicClock
from kvasir.core.errors import BadRequestError, InvariantViolation
from kvasir.core.events import Event
from kvasir.core.executor import Executor
from kvasir.core.progress import Progress, no_progress
from kvasir.core.request import Request
from kvasir.engine.assembly import EngineParts, assemble
from kvasir.engine.config import EngineConfig
from kvasir.engine.stats import EngineStats
from kvasir.kv.audit import audit
from kvasir.kv.layout import KVLayout
from kvasir.kv.usage import SlotUsage, group_usage, slot_usage
from kvasir.models.config import ModelConfig
from kvasir.models.resolve import ModelFolder
from kvasir.scheduling.scheduler import Scheduler

__all__ = ["Engine", "EngineStats"]


class Engine:
    """Not thread-safe: one owner calls ``add_request``, ``abort`` and ``step`` in turn.

    Events come out of ``step`` only, in order; an abort's events come with the next step.
    """

    def __init__(self, parts: EngineParts, clock: Clock | None = None) -> None:
        self.config: EngineConfig = parts.config
        self.folder: ModelFolder = parts.folder
        self.model_config: ModelConfig = parts.model_config
        self.model_digest: str = parts.model_digest
        self.layout: KVLayout = parts.manager.config.layout
        self.num_blocks: tuple[int, ...] = parts.manager.config.num_blocks
        self.max_model_len: int = parts.manager.config.max_model_len
        self.weights_bytes: int = parts.weights_bytes
        self.memory = parts.memory
        self.manager = parts.manager
        self.executor: Executor = parts.executor
        self.kernels_name: str = parts.kernels_name
        self.scheduler = Scheduler(parts.config.scheduler, parts.manager, clock or MonotonicClock())
        self._events: list[Event] = []
        self._num_computed_tokens = 0
        self._step_s_total = 0.0
        self._is_closed = False

    @classmethod
    def from_config(cls, config: EngineConfig, progress: Progress | None = None) -> Self:
        """Resolve the model, load it, plan the memory, allocate the pool.

        Raises ``ConfigError`` or ``ModelError`` in one sentence when it cannot serve as told."""
        return cls(assemble(config, progress or no_progress))

    @property
    def has_work(self) -> bool:
        """There are requests to compute or events to hand out."""
        return bool(self._events) or self.scheduler.has_work

    def add_request(self, request: Request) -> None:
        """Admit ``request`` or raise a refusal and change nothing."""
        request.sampling.check_vocabulary(self.model_config.vocab_size)
        self._check_prompt(request)
        self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """End a request in whatever state it is; does nothing when it is unknown or over."""
        self._events.extend(self.scheduler.abort(request_id))

    def stop_sequence(self, request_id: str, index: int) -> None:
        """End one sequence as stopped: its text hit a stop string, which only the text side can see."""
        self._events.extend(self.scheduler.stop_sequence(request_id, index))

    def step(self) -> list[Event]:
        """One plan, one forward pass; the events since the last step.  [] when there was nothing to do."""
        if self._is_closed:
            raise InvariantViolation("a closed engine was asked for a step")
        events, self._events = self._events, []
        plan = self.scheduler.schedule()
        if plan is None:
            return events
        started_s = time.perf_counter()
        result = self.executor.execute(plan)
        events.extend(self.scheduler.apply(result))
        self._step_s_total += time.perf_counter() - started_s
        self._num_computed_tokens += plan.num_tokens
        return events

    def stats(self) -> EngineStats:
        counters = self.scheduler.stats
        return EngineStats(
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            groups=group_usage(self.manager),
            num_steps=counters.num_steps,
            num_preemptions=counters.num_preemptions,
            num_prefix_queries=counters.num_prefix_queries,
            num_prefix_hits=counters.num_prefix_hits,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_generated_tokens=counters.num_generated_tokens,
            num_computed_tokens=self._num_computed_tokens,
            num_admitted=counters.num_admitted,
            num_aborted=counters.num_aborted,
            step_s_total=self._step_s_total,
            num_evicted_tokens=self.manager.eviction.num_evicted_tokens,
            num_evicted_blocks=sum(self.manager.eviction.num_freed_blocks),
        )

    def slot_usage(self) -> SlotUsage:
        """Reserved and filled token slots of everything running now; walks all block tables."""
        return slot_usage(self.manager, list(self.scheduler.running))

    def reset_prefix_cache(self) -> int:
        """Forget cached blocks that nobody uses; returns how many."""
        return self.manager.reset_prefix_cache()

    def audit(self) -> None:
        """Recount every block (law 5); raises ``InvariantViolation``.  For idle moments: it walks the whole pool."""
        audit(self.manager)

    def close(self) -> None:
        """Drop model and cache.  Requests still running get no further events.  Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        del self.executor

    def _check_prompt(self, request: Request) -> None:
        vocab_size = self.model_config.vocab_size
        ids = request.prompt_token_ids
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            wrong = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
            raise BadRequestError(
                f"The prompt has token id {wrong}, but the vocabulary is 0 to {vocab_size - 1}.", param="prompt"
            )
