"""One simulated engine: the real scheduler and block manager, a virtual clock, and an executor that only takes time."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kvasir.core.clock import VirtualClock
from kvasir.core.errors import InvariantViolation, KvasirError
from kvasir.core.events import RequestFinishedEvent
from kvasir.core.executor import Executor
from kvasir.core.request import Request
from kvasir.core.step import StepPlan, StepResult
from kvasir.kv.manager import KVManager, KVManagerConfig
from kvasir.scheduling.config import SchedulerConfig
from kvasir.scheduling.decode_run import foresee_decodes, take_decodes
from kvasir.scheduling.scheduler import Scheduler
from kvasir.simulator.cost_executor import TOKEN_ID, CostExecutor
from kvasir.simulator.step_load import StepLoad

_SHORTEST_RUN = 2
"""A run of one step is a step."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that the door did not let in, and why."""

    request_id: str
    code: str
    message: str


class StepStart(NamedTuple):
    """``num_steps`` steps on their way, the last of which ends at ``end_s``; 0: there is nothing to do."""

    num_steps: int
    end_s: float


class Instance:
    """Behaves as the engine process does: requests that arrive during a step are admitted when it ends.

    ``submit`` at any time; between steps ``admit`` what came, ``start``, and ``finish`` at the time that it named.

    With a ``CostExecutor`` (and ``takes_runs``) decode steps that can be foreseen are taken at once; nothing but speed
    depends on it.  ``on_starts`` sees plans in which sequences start.
    """

    def __init__(
        self,
        instance_id: int,
        manager: KVManagerConfig,
        scheduler: SchedulerConfig,
        executor: Executor,
        on_starts: "Callable[[Instance, StepPlan], None] | None" = None,
        takes_runs: bool = True,
    ) -> None:
        self.instance_id = instance_id
        self.clock = VirtualClock()
        self.manager = KVManager(manager)
        self.scheduler = Scheduler(scheduler, self.manager, self.clock)
        self._executor = executor
        self._runner = executor if takes_runs and isinstance(executor, CostExecutor) else None
        self._on_starts = on_starts
        self._arrived: list[Request] = []
        self._result: StepResult | None = None
        self.is_stepping = False
        self.busy_s = 0.0
        self.num_unfinished = 0
        self.num_unfinished_prompt_tokens = 0
        """What a router in front would count: prompts sent here and not answered yet."""
        self._prompt_tokens: dict[str, int] = {}

    def submit(self, request: Request) -> None:
        self._arrived.append(request)
        num_tokens = len(request.prompt_token_ids)
        self._prompt_tokens[request.request_id] = num_tokens
        self.num_unfinished += 1
        self.num_unfinished_prompt_tokens += num_tokens

    def admit(self, now_s: float) -> list[Refusal]:
        """Hand what has arrived to the scheduler; what its door turned away."""
        self.clock.advance_to(now_s)
        refused: list[Refusal] = []
        for request in self._arrived:
            try:
                self.scheduler.add(request)
            except KvasirError as error:
                refused.append(Refusal(request.request_id, error.code, str(error)))
                self._leave(request.request_id)
        self._arrived.clear()
        return refused

    def start(self, now_s: float, until_s: float = math.inf) -> StepStart:
        """Begin a step; nothing arrives here before ``until_s``."""
        if self.is_stepping:
            raise InvariantViolation("a simulated step was started inside another")
        self.clock.advance_to(now_s)
        if self._runner is not None and (durations := self._run(self._runner, now_s, until_s)):
            end_s = now_s
            for duration_s in durations:
                end_s += duration_s
            self.busy_s += end_s - now_s
            self.is_stepping = True
            return StepStart(len(durations), end_s)
        plan = self.scheduler.schedule()
        if plan is None:
            return StepStart(0, now_s)
        if plan.starts and self._on_starts is not None:
            self._on_starts(self, plan)
        self._result = self._executor.execute(plan)
        self.is_stepping = True
        self.busy_s += self._result.duration_s
        return StepStart(1, now_s + self._result.duration_s)

    def finish(self, now_s: float) -> list[RequestFinishedEvent]:
        """The running steps are over at ``now_s``; the requests that ended with them."""
        if not self.is_stepping:
            raise InvariantViolation("no simulated step is running")
        self.is_stepping = False
        self.clock.advance_to(now_s)
        result, self._result = self._result, None
        if result is None:
            return []  # a run: nobody ends in it
        events = self.scheduler.apply(result)
        if len(events) == len(result.tokens):
            return []  # a token each and nothing more: nobody ended
        finished = [event for event in events if type(event) is RequestFinishedEvent]
        for event in finished:
            self._leave(event.request_id)
        return finished

    def _run(self, runner: CostExecutor, now_s: float, until_s: float) -> list[float]:
        """Take the steps that can be foreseen and start before ``until_s``; their durations, [] when there are none."""
        num_steps = foresee_decodes(self.scheduler, TOKEN_ID)
        if num_steps < _SHORTEST_RUN:
            return []
        running = list(self.scheduler.running)
        num = len(running)
        num_keys = sum([sequence.num_computed_tokens - sequence.num_evicted_tokens + 1 for sequence in running])
        durations = runner.run(StepLoad(num, num, num, num, (num_keys,), (num_keys,)), num_steps, now_s, until_s)
        take_decodes(self.scheduler, len(durations), TOKEN_ID)
        return durations

    def _leave(self, request_id: str) -> None:
        self.num_unfinished -= 1
        self.num_unfinished_prompt_tokens -= self._prompt_tokens.pop(request_id)
