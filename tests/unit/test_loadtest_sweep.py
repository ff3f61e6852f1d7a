"""Where a sweep finds the knee, what it calls best, and when it says that it was too short."""

import pytest

from kvasir.core.errors import ConfigError
from kvasir.loadtest.load_test import Point, RunData
from kvasir.loadtest.measures import measure
from kvasir.loadtest.result import BenchResult
from kvasir.loadtest.runner import EndReason, Played
from kvasir.loadtest.self_watch import ClientCost
from kvasir.loadtest.settings import LoadSettings
from kvasir.loadtest.sweep import Sweep, SweepPoint, SweptSetting, judge
from kvasir.workload.arrivals import ArrivalProcess
from kvasir.workload.latency import Slo
from loadtest_setup import record

QS = (50.0, 99.0)


def sweep_point(
    value: float, throughput: float, latency_s: float, good: int | None = None, end: EndReason = EndReason.DONE
) -> SweepPoint:
    """Ten requests of one token each in the time that makes ``throughput``; ``good`` of them within 1 s."""
    records = tuple(
        record(0.0, [latency_s if good is None or index >= good else 0.01], num_output_tokens=1) for index in range(10)
    )
    slo = Slo() if good is None else Slo(e2e_s=0.1)
    measures = measure([(records, 10 / throughput)], slo, QS)
    played = Played(records=records, num_planned=10, duration_s=1.0, end_reason=end, started_at=0.0)
    point = Point(label=f"concurrency {value:g}", arrivals=None, max_concurrency=None, num_sessions=None, seed=0)
    cost = ClientCost(cpu_share=0.0, lag_p50_s=0.0, lag_p99_s=0.0, lag_max_s=0.0)
    run = RunData(point=point, workload_name="", workload={}, num_sessions=10, num_left_out=0, played=played, cost=cost)
    result = BenchResult(runs=(run,), measures=measures, per_run=(measures,))
    return SweepPoint(value=value, label=point.label, result=result)


def test_the_knee_is_where_queueing_begins() -> None:
    """A server of four slots: up to 4 throughput doubles at equal latency, then latency doubles at equal throughput."""
    points = [sweep_point(n, 10.0 * min(n, 4), max(n, 4) / 4) for n in (1, 2, 4, 8, 16)]
    verdict = judge(points, Slo())
    assert verdict is not None
    assert (verdict.knee.value, verdict.best.value, verdict.caution) == (4, 4, "")
    creeping = [
        sweep_point(n, x, r) for n, x, r in ((1, 10, 1.0), (2, 19, 1.05), (4, 33, 1.2), (8, 36, 2.2), (16, 38, 4.2))
    ]
    verdict = judge(creeping, Slo())
    assert verdict is not None and verdict.knee.value == 4
    assert "87 % of the highest output rate (33 of 38 tok/s at concurrency 16) at 29 % of its latency" in verdict.reason


def test_objectives_decide_where_they_are_given() -> None:
    points = [sweep_point(1, 10, 0.5, good=10), sweep_point(2, 20, 0.5, good=8), sweep_point(4, 30, 0.5, good=2)]
    verdict = judge(points, Slo(e2e_s=0.1))
    assert verdict is not None
    assert verdict.best.value == 2  # 16 good a second, against 10 and 6
    assert "80 % of those it served" in verdict.reason
    none = judge([sweep_point(n, 10, 0.5, good=0) for n in (1, 2)], Slo(e2e_s=0.1))
    assert none is not None and "No point met e2el:100 even once" in none.reason


def test_a_sweep_that_was_too_short_says_so() -> None:
    rising = judge([sweep_point(n, 10.0 * n, 1.0) for n in (1, 2, 4)], Slo())
    falling = judge([sweep_point(n, 10.0, float(n)) for n in (1, 2, 4)], Slo())
    assert rising is not None and "may lie beyond" in rising.caution
    assert falling is not None and "may lie below" in falling.caution
    assert judge([], Slo()) is None


def test_a_point_that_was_cut_short_is_no_operating_point() -> None:
    cut = sweep_point(2, 20.0, 0.1, end=EndReason.INTERRUPTED)
    verdict = judge([sweep_point(1, 10.0, 1.0), cut], Slo())
    assert verdict is not None and verdict.best.value == 1
    assert judge([cut], Slo()) is None


def test_sweeps_are_parsed() -> None:
    sweep = Sweep.parse("concurrency=8,1,2")
    assert sweep == Sweep(setting=SweptSetting.CONCURRENCY, values=(1.0, 2.0, 8.0))
    load = LoadSettings(arrivals=ArrivalProcess(rate=float("inf"), burstiness=0.5), num_sessions=None, seed=3)
    points = [sweep.point(load, value) for value in sweep.values]
    assert [point.max_concurrency for point in points] == [1, 2, 8]
    assert [point.num_sessions for point in points] == [16, 16, 32]
    assert len({point.seed for point in points}) == 3
    rate = Sweep.parse("rate=0.5,4").point(load, 4.0)
    assert rate.arrivals == ArrivalProcess(rate=4.0, burstiness=0.5)
    assert rate.num_sessions == 80
    for text in ("concurrency=1", "rate", "rate=1,x", "concurrency=1,2.5", "rate=0,1", "size=1,2", "rate=1,inf"):
        with pytest.raises(ConfigError, match="is no sweep"):
            Sweep.parse(text)
