"""The largest request rate that still meets the objectives, by doubling and then halving the interval."""

from dataclasses import dataclass

from kvasir.core.errors import ConfigError
from kvasir.core.progress import Progress, no_progress
from kvasir.simulator.report import SimulationReport, make_report
from kvasir.simulator.simulate import simulate
from kvasir.simulator.sweep import Scenario, with_rate
from kvasir.workload.latency import Slo

_MOST_PROBES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityQuestion:
    """``attainment``: share of all requests (refused ones too) that must meet ``slo``.  The answer is within
    ``tolerance`` (relative) of the edge."""

    slo: Slo
    attainment: float = 0.95
    tolerance: float = 0.02
    burstiness: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.slo.is_empty:
            raise ConfigError("A capacity search needs objectives; give --goodput, like --goodput ttft:500 tpot:50.")
        if not 0 < self.attainment <= 1:
            raise ConfigError(f"--attainment must be above 0 and at most 1, got {self.attainment}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    rate: float
    report: SimulationReport
    is_met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """``rate`` in requests a second is the largest probed one that met the objectives; 0.0 when none did: then they
    cannot be met at any rate worth having.  ``probes`` in order of rate."""

    rate: float
    question: CapacityQuestion
    probes: tuple[Probe, ...]

    @property
    def best(self) -> Probe | None:
        return next((probe for probe in reversed(self.probes) if probe.rate == self.rate), None)


def find_capacity(scenario: Scenario, question: CapacityQuestion, progress: Progress = no_progress) -> Capacity:
    """Plays the trace's requests at one rate after another, the same arrivals (seed) scaled.

    Whether objectives are met is taken to fall with the rate; where it does not (a burst that happens to fit), the
    answer is one edge of several."""
    probes: dict[float, Probe] = {}

    def is_met(rate: float) -> bool:
        probe = _probe(scenario, rate, question, progress)
        probes[rate] = probe
        return probe.is_met

    low, high = _bracket(_first_guess(scenario), is_met)
    while high - low > question.tolerance * high and len(probes) < _MOST_PROBES:
        middle = (low + high) / 2
        if is_met(middle):
            low = middle
        else:
            high = middle
    ordered = tuple(probes[rate] for rate in sorted(probes))
    return Capacity(rate=low, question=question, probes=ordered)


def _bracket(first: float, is_met) -> tuple[float, float]:
    """Rates that do and do not meet the objectives, within a factor of two; (0, r) when even r is too much."""
    rate = first
    if is_met(rate):
        for _ in range(12):
            if not is_met(2 * rate):
                return rate, 2 * rate
            rate *= 2
        return rate, rate
    for _ in range(12):
        if is_met(rate / 2):
            return rate / 2, rate
        rate /= 2
    return 0.0, 0.0


def _first_guess(scenario: Scenario) -> float:
    """The trace's own rate, or one a second when it has none."""
    rate = scenario.trace.rate
    return rate if 0 < rate < float("inf") else 1.0


def _probe(scenario: Scenario, rate: float, question: CapacityQuestion, progress: Progress) -> Probe:
    asked = with_rate(scenario, rate, question.burstiness, question.seed)
    result = simulate(asked.trace, asked.setup, progress, f"{rate:.3g} requests/s")
    report = make_report(result, question.slo, asked.price_per_hour)
    return Probe(rate=rate, report=report, is_met=report.good_fraction >= question.attainment)
