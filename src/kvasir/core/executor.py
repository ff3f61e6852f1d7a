"""The seam between deciding and computing: anything that can turn a plan into a result."""

from typing import Protocol

from kvasir.core.step import StepPlan, StepResult


class Executor(Protocol):
    """Computes plans in order.  Mutates only its own state and the KV store; never decides what runs."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Apply the plan (see ``StepPlan`` for the order) and return a token for every ``sample_for`` entry."""
        ...
