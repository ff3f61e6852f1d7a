"""An executor that computes nothing and says how long it would have taken."""

from collections.abc import Callable

from kvasir.core.step import SampledToken, StepPlan, StepResult
from kvasir.simulator.step_cost import StepCost
from kvasir.simulator.step_load import StepLoad, StepMeter

TOKEN_ID = 0
"""What every simulated sequence says; answers end by their length."""


class CostExecutor:
    """The simulator's ``Executor``.  ``on_load(load, duration_s)`` sees every step but those of runs, of which
    ``on_run(first_load, durations_s)`` is told instead."""

    def __init__(
        self,
        cost: StepCost,
        on_load: Callable[[StepLoad, float], None] | None = None,
        on_run: Callable[[StepLoad, list[float]], None] | None = None,
    ) -> None:
        self._cost = cost
        self._meter = StepMeter(cost.retentions)
        self._on_load = on_load
        self._on_run = on_run
        self._tokens: dict[int, SampledToken] = {}
        """One token per running sequence, the same value in every step."""

    def run(self, first: StepLoad, num_steps: int, now_s: float, until_s: float) -> list[float]:
        """Durations of the decode steps that start before ``until_s``, at most ``num_steps``.

        ``first`` is the load of the first; every sequence sees one key more in each next one."""
        num, num_keys = first.num_sequences, first.pairs[0]
        decode_s = self._cost.decoder(num)
        durations: list[float] = []
        while len(durations) < num_steps and now_s < until_s:
            duration_s = decode_s(num_keys)
            durations.append(duration_s)
            now_s += duration_s
            num_keys += num
        if self._on_run is not None:
            self._on_run(first, durations)
        return durations

    def execute(self, plan: StepPlan) -> StepResult:
        tokens = self._tokens
        for sequence_id in plan.ended:
            tokens.pop(sequence_id, None)
        for start in plan.starts:
            tokens[start.sequence_id] = SampledToken(start.sequence_id, TOKEN_ID)
        load = self._meter.measure(plan)
        duration_s = self._cost.step_s(load)
        if self._on_load is not None:
            self._on_load(load, duration_s)
        return StepResult(
            step_id=plan.step_id,
            tokens=tuple([tokens[sequence_id] for row in plan.rows for sequence_id in row.sample_for]),
            duration_s=duration_s,
        )
