"""Plays the points of a sweep and writes them down."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvasir.loadtest.load_test import LoadTest, Watcher
from kvasir.loadtest.result import BenchResult, summary_json
from kvasir.loadtest.sweep import Sweep, SweepPoint, Verdict


async def run_point(test: LoadTest, sweep: Sweep, value: float, watcher: Watcher | None = None) -> SweepPoint:
    """One value, as often as the settings say; fewer times when the test is stopped."""
    point = sweep.point(test.settings.load, value)
    runs = []
    for number in range(test.settings.load.num_runs):
        runs.append(await test.run(replace(point, seed=point.seed + number), watcher))
        if test.stop.is_set:
            break
    return SweepPoint(value=value, label=point.label, result=BenchResult.of(runs, test.settings))


def sweep_json(sweep: Sweep, points: Sequence[SweepPoint], verdict: Verdict | None, test: LoadTest) -> dict[str, Any]:
    """Every point with its summary; ``is_complete`` says whether all values were played to the end."""
    summaries = [summary_json(point.result, test) for point in points]
    is_complete = len(points) == len(sweep.values) and all(summary["is_complete"] for summary in summaries)
    return {
        "sweep": sweep.setting.value,
        "values": list(sweep.values),
        "is_complete": is_complete,
        "best": None if verdict is None else verdict.best.value,
        "knee": None if verdict is None else verdict.knee.value,
        "reason": None if verdict is None else verdict.reason,
        "caution": None if verdict is None else verdict.caution,
        "points": [
            {"value": point.value, "power": point.power} | summary
            for point, summary in zip(points, summaries, strict=True)
        ],
    }
