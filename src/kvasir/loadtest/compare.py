"""Two results side by side: what changed, and whether it is more than the noise of the measurement.

Repeated runs give the honest band: Welch's interval over the runs' own values.  With one run each, requests are drawn
anew from those that were measured (bootstrap), and seconds of the run for throughput.  That band knows nothing of how
much one run differs from the next, so it is the least the noise can be.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kvasir.loadtest.saved_result import Side

CONFIDENCE = 0.95
_ROUNDS = 1000
# Student's t at 97.5 %, by degrees of freedom 1..30.
_T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_LATENCIES = ("ttft", "tpot", "itl", "e2el")
_STATISTICS = ("mean", "median", "p99")
_RATES = ("output_throughput", "request_throughput", "request_goodput")
_SAME = (
    "backend",
    "model_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "total_input_tokens",
)
"""What should be alike for a comparison to mean anything."""


class Band(Enum):
    RUNS = "runs"
    BOOTSTRAP = "bootstrap"
    NONE = "none"


class Change(Enum):
    BETTER = "better"
    WORSE = "worse"
    NOISE = "within noise"
    UNKNOWN = "no band"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """``change``: (b - a) / a, with its ``low`` and ``high`` bound where there is a band."""

    key: str
    a: float
    b: float
    is_higher_better: bool
    band: Band
    low: float | None = None
    high: float | None = None

    @property
    def change(self) -> float:
        return self.b / self.a - 1.0 if self.a else math.inf

    @property
    def verdict(self) -> Change:
        if self.low is None or self.high is None:
            return Change.UNKNOWN
        if self.low <= 0.0 <= self.high:
            return Change.NOISE
        return Change.BETTER if (self.low > 0.0) == self.is_higher_better else Change.WORSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``unlike``: settings that differ, as (name, a, b)."""

    a: Side
    b: Side
    differences: tuple[Difference, ...]
    unlike: tuple[tuple[str, str, str], ...]


def compare(a: Side, b: Side, seed: int = 0) -> Comparison:
    """Every measure that both have."""
    from kvasir.loadtest.bootstrap import Resampler

    resampler = Resampler(a, b, rounds=_ROUNDS, seed=seed)
    differences = []
    for key in _keys():
        value_a, value_b = a.value(key), b.value(key)
        if value_a is None or value_b is None:
            continue
        interval, band = _runs_interval(a.runs, b.runs, key), Band.RUNS
        if interval is None:
            interval, band = resampler.interval(key), Band.BOOTSTRAP
        low, high = interval if interval is not None else (None, None)
        differences.append(
            Difference(
                key=key,
                a=value_a,
                b=value_b,
                is_higher_better=key in _RATES,
                band=band if interval is not None else Band.NONE,
                low=low,
                high=high,
            )
        )
    return Comparison(a=a, b=b, differences=tuple(differences), unlike=tuple(_unlike(a, b)))


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "a": comparison.a.name,
        "b": comparison.b.name,
        "confidence": CONFIDENCE,
        "unlike": [{"setting": name, "a": a, "b": b} for name, a, b in comparison.unlike],
        "differences": [
            {
                "measure": difference.key,
                "a": difference.a,
                "b": difference.b,
                "change": difference.change,
                "low": difference.low,
                "high": difference.high,
                "band": difference.band.value,
                "verdict": difference.verdict.value,
            }
            for difference in comparison.differences
        ],
    }


def _unlike(a: Side, b: Side) -> Iterator[tuple[str, str, str]]:
    """What should be alike; a setting that only one of two programs writes down is no difference."""
    known = [{name: side.data.get(name) for name in _SAME} | (side.data.get("workload") or {}) for side in (a, b)]
    for name in known[0] | known[1]:
        if (name in known[0]) == (name in known[1]) and known[0][name] != known[1][name]:
            yield name.replace("_", " "), str(known[0][name]), str(known[1][name])


def _keys() -> list[str]:
    return [*_RATES, *(f"{statistic}_{name}_ms" for name in _LATENCIES for statistic in _STATISTICS)]


def _runs_interval(
    runs_a: Sequence[dict[str, Any]], runs_b: Sequence[dict[str, Any]], key: str
) -> tuple[float, float] | None:
    """Welch's interval of the relative difference of means; None unless both have at least two runs."""
    values_a = [run[key] for run in runs_a if isinstance(run.get(key), int | float)]
    values_b = [run[key] for run in runs_b if isinstance(run.get(key), int | float)]
    if min(len(values_a), len(values_b)) < 2:
        return None
    mean_a, error_a = _mean_and_error(values_a)
    mean_b, error_b = _mean_and_error(values_b)
    if mean_a == 0.0:
        return None
    variance = error_a**2 + error_b**2
    if variance == 0.0:
        change = mean_b / mean_a - 1.0
        return change, change
    freedom = variance**2 / (error_a**4 / (len(values_a) - 1) + error_b**4 / (len(values_b) - 1))
    margin = _t975(int(freedom)) * math.sqrt(variance)
    return (mean_b - mean_a - margin) / mean_a, (mean_b - mean_a + margin) / mean_a


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def _t975(freedom: int) -> float:
    return _T975[max(1, freedom) - 1] if freedom <= len(_T975) else 1.96
