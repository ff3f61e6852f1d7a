"""Times the steps of an engine in this process under small loads that tell its costs apart."""

import time
from collections.abc import Sequence
from typing import Protocol

from kvasir.core.events import Event
from kvasir.core.executor import Executor
from kvasir.core.progress import Progress, no_progress
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.core.step import StepPlan, StepResult
from kvasir.simulator.calibration import Observation
from kvasir.simulator.probe_loads import FULL_PROBE, PROBE_S, WARM_UP, ProbeLoad, in_rounds
from kvasir.simulator.step_load import StepMeter
from kvasir.workload.prompts import make_token_ids

_FIRST_ID, _LAST_ID = 100, 40_000


class ProbedEngine(Protocol):
    """As much of the engine as a probe needs."""

    executor: Executor
    max_model_len: int

    @property
    def has_work(self) -> bool: ...

    def add_request(self, request: Request) -> None: ...

    def step(self) -> list[Event]: ...

    def reset_prefix_cache(self) -> int: ...


class StepRecorder:
    """An executor that keeps the latest plan of the one it wraps."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.plan: StepPlan | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        self.plan = plan
        return self._inner.execute(plan)


def probe_engine(
    engine: ProbedEngine,
    loads: Sequence[ProbeLoad] = FULL_PROBE,
    seconds: float = PROBE_S,
    progress: Progress = no_progress,
) -> list[Observation]:
    """Whole steps of ``engine`` (schedule, compute, apply) with what was in them.

    The engine must be idle and its layers full attention; its executor is wrapped meanwhile.  Loads that do not fit its
    context are cut to it."""
    inner = engine.executor
    recorder = StepRecorder(inner)
    engine.executor = recorder
    try:
        return _play(engine, recorder, [_fitted(load, engine.max_model_len) for load in loads], seconds, progress)
    finally:
        engine.executor = inner


def _play(
    engine: ProbedEngine, recorder: StepRecorder, loads: Sequence[ProbeLoad], seconds: float, progress: Progress
) -> list[Observation]:
    meter = StepMeter()
    _run(engine, recorder, meter, WARM_UP, seed=0)
    observations: list[Observation] = []
    for load, seed in in_rounds(loads, seconds, progress):
        observations += _run(engine, recorder, meter, load, seed)
    return observations


def _run(
    engine: ProbedEngine, recorder: StepRecorder, meter: StepMeter, load: ProbeLoad, seed: int
) -> list[Observation]:
    """The load's steps; prompts are new each time, so that none is found in the cache."""
    engine.reset_prefix_cache()
    for number in range(load.num_sequences):
        ids = make_token_ids(load.num_prompt, 1000 * seed + number, first_id=_FIRST_ID, last_id=_LAST_ID)
        sampling = SamplingParams(temperature=0.0, max_tokens=load.num_output, ignore_eos=True)
        engine.add_request(Request(request_id=f"probe-{seed}-{number}", prompt_token_ids=ids, sampling=sampling))
    observations = []
    while engine.has_work:
        recorder.plan = None
        started_s = time.perf_counter()
        engine.step()
        seconds = time.perf_counter() - started_s
        if recorder.plan is not None:
            observations.append(Observation.of_step(load.name, meter.measure(recorder.plan), seconds))
    return observations


def _fitted(load: ProbeLoad, max_model_len: int) -> ProbeLoad:
    num_prompt = max(1, min(load.num_prompt, max_model_len - load.num_output - 1))
    return ProbeLoad(num_sequences=load.num_sequences, num_prompt=num_prompt, num_output=load.num_output)
