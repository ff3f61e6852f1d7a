"""The same traffic on several deployments: every combination of the swept settings, one report each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from kvasir.core.errors import ConfigError
from kvasir.core.progress import Progress, no_progress
from kvasir.simulator.eviction import EvictionPolicy
from kvasir.simulator.report import SimulationReport, make_report
from kvasir.simulator.routing import Routing
from kvasir.simulator.simulate import SimulationSetup, simulate
from kvasir.workload.arrivals import ArrivalProcess
from kvasir.workload.latency import Slo
from kvasir.workload.traces.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is played on what: the two things a sweep changes."""

    trace: Trace
    setup: SimulationSetup
    price_per_instance: float | None = None

    @property
    def price_per_hour(self) -> float | None:
        price = self.price_per_instance
        return None if price is None else price * self.setup.fleet.num_instances


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptSetting:
    """``parse`` reads one value of the list, ``apply`` puts it into a scenario."""

    parse: Callable[[str], Any]
    apply: Callable[[Scenario, Any], Scenario]


def _count(text: str) -> int:
    value = int(text.replace("_", ""))
    if value < 1:
        raise ValueError
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError
    return value


def _with_setup(**changes: Any) -> Callable[[Scenario], Scenario]:
    return lambda scenario: replace(scenario, setup=replace(scenario.setup, **changes))


def _blocks(scenario: Scenario, num_blocks: int) -> Scenario:
    """``num_blocks`` in all, split over the groups as they were."""
    old = scenario.setup.num_blocks
    split = tuple(max(1, round(num_blocks * share / sum(old))) for share in old)
    return _with_setup(num_blocks=split)(scenario)


def _scheduler(**changes: Any) -> Callable[[Scenario], Scenario]:
    def apply(scenario: Scenario) -> Scenario:
        return _with_setup(scheduler=replace(scenario.setup.scheduler, **changes))(scenario)

    return apply


def _fleet(**changes: Any) -> Callable[[Scenario], Scenario]:
    def apply(scenario: Scenario) -> Scenario:
        return _with_setup(fleet=replace(scenario.setup.fleet, **changes))(scenario)

    return apply


def with_rate(scenario: Scenario, rate: float, burstiness: float = 1.0, seed: int = 0) -> Scenario:
    """The trace's requests in their order, arriving at ``rate`` a second."""
    times = ArrivalProcess(rate=rate, burstiness=burstiness, seed=seed).times_s(len(scenario.trace))
    return replace(scenario, trace=scenario.trace.at(times))


SETTINGS: Mapping[str, SweptSetting] = {
    "kv-blocks": SweptSetting(parse=_count, apply=_blocks),
    "policy": SweptSetting(parse=EvictionPolicy, apply=lambda s, v: _with_setup(policy=v)(s)),
    "max-num-batched-tokens": SweptSetting(parse=_count, apply=lambda s, v: _scheduler(max_num_batched_tokens=v)(s)),
    "max-num-seqs": SweptSetting(parse=_count, apply=lambda s, v: _scheduler(max_num_seqs=v)(s)),
    "instances": SweptSetting(parse=_count, apply=lambda s, v: _fleet(num_instances=v)(s)),
    "long-instances": SweptSetting(parse=_count, apply=lambda s, v: _fleet(num_long=v)(s)),
    "routing": SweptSetting(parse=Routing, apply=lambda s, v: _fleet(routing=v)(s)),
    "length-cut": SweptSetting(parse=_count, apply=lambda s, v: _fleet(length_cut=v)(s)),
    "request-rate": SweptSetting(parse=_rate, apply=with_rate),
    "trace-speed": SweptSetting(parse=_rate, apply=lambda s, v: replace(s, trace=s.trace.faster(v))),
    "max-concurrency": SweptSetting(parse=_count, apply=lambda s, v: _with_setup(num_clients=v)(s)),
}
"""What can be swept, by the name of the flag that sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One swept setting and its values in the order given."""

    name: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """``kv-blocks=500,1000,2000``.  Raises ``ConfigError``."""
        name, _, listed = text.partition("=")
        setting = SETTINGS.get(name.strip().removeprefix("--"))
        if setting is None:
            raise ConfigError(f"--sweep {text!r}: {name!r} cannot be swept; {', '.join(SETTINGS)} can.")
        try:
            values = tuple(setting.parse(word.strip()) for word in listed.split(",") if word.strip())
        except ValueError:
            values = ()
        if not values:
            raise ConfigError(f"--sweep {text!r}: write values, like --sweep kv-blocks=500,1000 or policy=lru,fifo.")
        return cls(name=name.strip().removeprefix("--"), values=values)


def shown(value: Any) -> str:
    """A swept value as a person wrote it."""
    if isinstance(value, EvictionPolicy | Routing):
        return value.value
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """``values`` in the order of the axes; ``error`` says why a combination cannot be, and then there is no report."""

    values: tuple[Any, ...]
    report: SimulationReport | None
    error: str | None = None


def run_sweep(base: Scenario, axes: Sequence[Axis], slo: Slo, progress: Progress = no_progress) -> list[SweepPoint]:
    """Every combination, the last axis fastest."""
    points: list[SweepPoint] = []
    combinations = list(product(*(axis.values for axis in axes)))
    for number, values in enumerate(combinations):
        label = ", ".join(f"{axis.name} {shown(value)}" for axis, value in zip(axes, values, strict=True))
        try:
            scenario = base
            for axis, value in zip(axes, values, strict=True):
                scenario = SETTINGS[axis.name].apply(scenario, value)
            result = simulate(scenario.trace, scenario.setup, progress, f"{number + 1}/{len(combinations)} {label}")
        except ConfigError as error:
            points.append(SweepPoint(values=values, report=None, error=str(error)))
            continue
        points.append(SweepPoint(values=values, report=make_report(result, slo, scenario.price_per_hour)))
    return points
