"""An engine's run, written down step by step, and its replay in the simulator."""

from dataclasses import dataclass, field

from kvasir.core.request import Request
from kvasir.core.step import StepPlan, StepResult
from kvasir.kv.manager import KVManagerConfig
from kvasir.scheduling.config import SchedulerConfig
from kvasir.simulator.arrival_source import OpenLoop
from kvasir.simulator.fleet import Fleet
from kvasir.simulator.instance import Instance
from kvasir.simulator.recorder import Recorder
from kvasir.simulator.routing import RoundRobin
from kvasir.workload.traces.trace import Trace, TraceRequest

TICK_S = 2.0**-20
"""Times are whole multiples of this, so that sums of them are exact however they are added."""


@dataclass
class EngineRun:
    """``arrivals``: request and the time from which the engine could take it in; ``steps``: plan, result, seconds."""

    arrivals: list[tuple[float, Request]] = field(default_factory=list)
    plans: list[StepPlan] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)


class ReplayExecutor:
    """Answers the n-th plan with the engine's n-th result and takes as long as the engine took."""

    def __init__(self, run: EngineRun) -> None:
        self._run = run
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> StepResult:
        number = len(self.plans)
        self.plans.append(plan)
        recorded = self._run.results[number]
        return StepResult(
            step_id=recorded.step_id,
            tokens=recorded.tokens,
            failed=recorded.failed,
            duration_s=self._run.durations_s[number],
        )


def replay(run: EngineRun, manager: KVManagerConfig, scheduler: SchedulerConfig) -> tuple[list[StepPlan], Recorder]:
    """The plans that the simulator makes of the same arrivals when steps take as long as they took."""
    executor = ReplayExecutor(run)
    instance = Instance(0, manager, scheduler, executor)
    requests = {request.request_id: request for _, request in run.arrivals}
    trace = Trace(
        name="recorded",
        requests=tuple(
            TraceRequest(
                request_id=request.request_id,
                arrival_s=arrival_s,
                num_prompt_tokens=len(request.prompt_token_ids),
                num_output_tokens=1,
            )
            for arrival_s, request in run.arrivals
        ),
    )
    fleet = Fleet(
        instances=[instance],
        router=RoundRobin([instance]),
        make_request=lambda recorded: requests[recorded.request_id],
    )
    recorder = Recorder()
    recorder.close([instance], fleet.run(OpenLoop(trace), recorder))
    return executor.plans, recorder
