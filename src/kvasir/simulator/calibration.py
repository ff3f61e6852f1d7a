"""From timed steps to step costs: which constants make the measured seconds, and how well they do."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from kvasir.core.errors import KvasirError
from kvasir.simulator.least_squares import fit_nonnegative
from kvasir.simulator.step_cost import FittedStepCost
from kvasir.simulator.step_load import StepLoad

_FEWEST = 12
_ROUNDS = 4
_OUTLIER = 4.0
"""Observations off by more than this many times the median deviation are noise of the machine, not of the model."""


class CalibrationError(KvasirError):
    """A probe that measured too little to fit anything."""

    code = "calibration_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """``num_steps`` steps took ``seconds`` in all; the other numbers are sums over them.  ``source`` names the load."""

    source: str
    seconds: float
    num_steps: float
    num_tokens: float
    num_sequences: float
    num_pairs: float
    num_reads: float

    @classmethod
    def of_step(cls, source: str, load: StepLoad, seconds: float) -> "Observation":
        return cls(
            source=source,
            seconds=seconds,
            num_steps=1,
            num_tokens=load.num_tokens,
            num_sequences=load.num_sequences,
            num_pairs=load.pairs[0],
            num_reads=load.reads[0],
        )

    @property
    def row(self) -> tuple[float, float, float, float, float]:
        """In the order of ``FittedStepCost``'s constants."""
        return (self.num_steps, self.num_tokens, self.num_sequences, self.num_pairs, self.num_reads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """``error`` is the median of |predicted / measured - 1| over all observations, ``errors`` by source.
    ``num_left_out`` observations were outliers."""

    cost: FittedStepCost
    error: float
    errors: dict[str, float]
    num_observations: int
    num_left_out: int


def fit_costs(observations: Sequence[Observation]) -> Fit:
    """Relative least squares: a step of 10 ms counts as much as one of a second.

    Refitted without outliers: on a shared machine some steps wait for other programs.  Raises ``CalibrationError``."""
    usable = [observation for observation in observations if observation.seconds > 0]
    if len(usable) < _FEWEST:
        raise CalibrationError(f"{len(usable)} timed steps are too few to fit step costs; {_FEWEST} are needed.")
    kept = usable
    cost = _fit(kept)
    for _ in range(_ROUNDS):
        deviations = [abs(_predicted(cost, o) / o.seconds - 1.0) for o in usable]
        limit = max(0.02, _OUTLIER * median(deviations))
        inliers = [o for o, deviation in zip(usable, deviations, strict=True) if deviation <= limit]
        if len(inliers) == len(kept) or len(inliers) < _FEWEST:
            break
        kept, cost = inliers, _fit(inliers)
    by_source: dict[str, list[float]] = {}
    for observation in usable:
        by_source.setdefault(observation.source, []).append(
            abs(_predicted(cost, observation) / observation.seconds - 1.0)
        )
    return Fit(
        cost=cost,
        error=median([error for errors in by_source.values() for error in errors]),
        errors={source: median(errors) for source, errors in by_source.items()},
        num_observations=len(usable),
        num_left_out=len(usable) - len(kept),
    )


def _fit(observations: Sequence[Observation]) -> FittedStepCost:
    rows = [tuple(value / o.seconds for value in o.row) for o in observations]
    per_step, per_token, per_sequence, per_pair, per_read = fit_nonnegative(rows, [1.0] * len(rows))
    return FittedStepCost(
        per_step_s=per_step,
        per_token_s=per_token,
        per_sequence_s=per_sequence,
        per_pair_s=per_pair,
        per_read_s=per_read,
    )


def _predicted(cost: FittedStepCost, o: Observation) -> float:
    per = (cost.per_step_s, cost.per_token_s, cost.per_sequence_s, cost.per_pair_s, cost.per_read_s)
    return sum(constant * count for constant, count in zip(per, o.row, strict=True))
