"""The same load at several strengths: where throughput stops paying for latency, and which point to run at."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from kvasir.core.errors import ConfigError
from kvasir.loadtest.load_test import Point
from kvasir.loadtest.measures import Measures
from kvasir.loadtest.result import BenchResult
from kvasir.loadtest.settings import LoadSettings
from kvasir.workload.arrivals import ArrivalProcess
from kvasir.workload.latency import Slo

_FEWEST_SESSIONS = 16
_SESSIONS_PER_SLOT = 4
_SECONDS_PER_RATE = 20.0
_STILL_RISING = 1.05


class SweptSetting(Enum):
    CONCURRENCY = "concurrency"
    RATE = "rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """``values`` ascending, at least two."""

    setting: SweptSetting
    values: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> "Sweep":
        """``concurrency=1,2,4`` or ``rate=0.5,1,2``.  Raises ``ConfigError``."""
        name, _, listed = text.partition("=")
        try:
            setting = SweptSetting(name.strip())
            values = sorted({float(value) for value in listed.split(",")})
        except ValueError:
            setting, values = SweptSetting.RATE, []
        is_bad = len(values) < 2 or not all(0 < value < float("inf") for value in values)
        if is_bad or (setting is SweptSetting.CONCURRENCY and any(value % 1 for value in values)):
            raise ConfigError(f"{text!r} is no sweep; write one like concurrency=1,2,4,8 or rate=0.5,1,2.")
        return cls(setting=setting, values=tuple(values))

    def label(self, value: float) -> str:
        return f"{self.setting.value} {value:g}"

    def point(self, load: LoadSettings, value: float) -> Point:
        """The load at ``value``, with prompts of its own: no point finds its prefixes cached by the one before."""
        is_rate = self.setting is SweptSetting.RATE
        enough = _SECONDS_PER_RATE * value if is_rate else _SESSIONS_PER_SLOT * value
        arrivals = replace(load.arrivals, rate=value) if is_rate else ArrivalProcess(rate=float("inf"))
        return Point(
            label=self.label(value),
            arrivals=arrivals,
            max_concurrency=load.max_concurrency if is_rate else int(value),
            num_sessions=load.num_sessions or max(_FEWEST_SESSIONS, round(enough)),
            seed=load.seed + 1000 * self.values.index(value),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    value: float
    label: str
    result: BenchResult

    @property
    def measures(self) -> Measures:
        return self.result.measures

    @property
    def power(self) -> float:
        """Output tokens a second over mean latency: largest where more load begins to buy queueing instead of output
        (Kleinrock, "Power and deterministic rules of thumb", ICC 1979)."""
        latency = self.measures.e2el_s
        return self.measures.output_throughput / latency.mean if latency is not None and latency.mean > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``knee``: the point of most power.  ``best``: with objectives the point of most goodput, else the knee.
    ``reason`` says why in one sentence, ``caution`` what the sweep did not show (empty: nothing)."""

    knee: SweepPoint
    best: SweepPoint
    reason: str
    caution: str


def judge(points: Sequence[SweepPoint], slo: Slo) -> Verdict | None:
    """None when no point was played to its end with an answer; points that were cut short are left out."""
    usable = [
        point
        for point in points
        if point.measures.num_completed and point.power > 0 and point.result.end_reason.is_orderly
    ]
    if not usable:
        return None
    knee = max(usable, key=lambda point: point.power)
    fastest = max(usable, key=lambda point: point.measures.output_throughput)
    if slo.is_empty:
        return Verdict(knee=knee, best=knee, reason=_why_knee(knee, fastest), caution=_caution(knee, usable))
    best = max(usable, key=lambda point: point.measures.request_goodput or 0.0)
    goodput = best.measures.request_goodput or 0.0
    if goodput == 0.0:
        return Verdict(
            knee=knee, best=knee, reason=f"No point met {slo} even once; {_why_knee(knee, fastest)}", caution=""
        )
    measured = best.measures.goodput
    assert measured is not None  # there are objectives
    reason = (
        f"Most requests within {slo}: {goodput:.3g} req/s are good, "
        f"{100 * measured.num_good / best.measures.num_completed:.0f} % of those it served."
    )
    return Verdict(knee=knee, best=best, reason=reason, caution=_caution(best, usable))


def _why_knee(knee: SweepPoint, fastest: SweepPoint) -> str:
    if knee is fastest:
        return f"The highest output rate ({knee.measures.output_throughput:.4g} tok/s), and the most for its latency."
    ours, theirs = knee.measures, fastest.measures
    assert ours.e2el_s is not None and theirs.e2el_s is not None  # usable points have latencies
    return (
        f"{100 * ours.output_throughput / theirs.output_throughput:.0f} % of the highest output rate "
        f"({ours.output_throughput:.4g} of {theirs.output_throughput:.4g} tok/s at {fastest.label}) at "
        f"{100 * ours.e2el_s.mean / theirs.e2el_s.mean:.0f} % of its latency."
    )


def _caution(chosen: SweepPoint, points: Sequence[SweepPoint]) -> str:
    if len(points) < 2:
        return "Only one point could be measured."
    if (
        chosen is points[-1]
        and chosen.measures.output_throughput > _STILL_RISING * points[-2].measures.output_throughput
    ):
        return "It is the strongest load that was tried and output still rises: the best may lie beyond."
    if chosen is points[0]:
        return "It is the weakest load that was tried: the best may lie below."
    return ""
