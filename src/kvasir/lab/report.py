"""A whole run as one value: facts of the settings, figures of all measures, the gate; and as one result file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvasir.claims.quality_report import KIND, VERSION
from kvasir.claims.result_file import Better, ResultWriter
from kvasir.lab.estimate import Estimate
from kvasir.lab.figures import Figures, MeasureResult, Metric, SettingFigures
from kvasir.lab.gate import Limit, Outcome
from kvasir.lab.measure import Size
from kvasir.lab.subject import SubjectFacts

# (measure, metric): what is claimed of each setting in a result file.
_CLAIMED = (("kl", "mean"), ("kl", "top1"), ("copy", "gap"), ("passkey", "found"))


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRun:
    """``order``: the reference, the floor, the nudged one, the settings and their controls, as in every table.

    ``facts`` are of those that ran here, ``servers`` the addresses of the others.  ``judged`` are the settings that a
    person asked for.
    """

    model: str
    size: Size
    context: int
    texts: str
    reference: str
    floor: str
    nudged: str | None
    order: tuple[str, ...]
    judged: tuple[str, ...]
    facts: Mapping[str, SubjectFacts]
    servers: Mapping[str, str]
    results: tuple[MeasureResult, ...]
    skipped: tuple[str, ...]
    gate: Outcome
    duration_s: float

    @property
    def controls(self) -> tuple[str, ...]:
        """Who is no worse than the reference: itself in other batches, and with the least change there is."""
        return (self.floor,) if self.nudged is None else (self.floor, self.nudged)

    def flagged(self, setting: str) -> list[tuple[MeasureResult, Metric]]:
        """The damage of ``setting``: what lies beyond both controls with its whole interval."""
        return [(result, metric) for result in self.results for metric in result.flags(setting, self.controls)]

    def measurements(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "kind": KIND,
            "version": VERSION,
            "model": self.model,
            "size": self.size.value,
            "context": self.context,
            "texts": self.texts,
            "reference": self.reference,
            "floor": self.floor,
            "nudged": self.nudged,
            "order": list(self.order),
            "settings": {
                **{name: {**asdict(facts), "base_url": None} for name, facts in self.facts.items()},
                **{name: {"base_url": url} for name, url in self.servers.items()},
            },
            "measures": {result.name: self._measure(result) for result in self.results},
            "skipped": list(self.skipped),
            "gate": self._gate(),
            "duration_s": self.duration_s,
        }

    def write(self, path: Path, command: str = "") -> Path:
        """As a result file; its claims are the figures of the settings that were asked for, with the gate's limits as
        targets.  ``command`` is how it is made again; by default how this process was started."""
        writer = ResultWriter(path=path, command=command, measurements=self.measurements())
        for setting in self.judged:
            for measure, key in _CLAIMED:
                result = next((result for result in self.results if result.name == measure), None)
                found = None if result is None else result.figure(setting, key)
                if result is None or found is None:
                    continue
                metric = next(metric for metric in result.metrics if metric.key == key)
                limit = self._limit(measure, key)
                # A limit binds the interval's bad end, so that is what is claimed where there is one.
                bad_end = found.highest if metric.better is Better.LOWER else found.lowest
                ending = "" if limit is None else ", bad end of the 95 % interval"
                writer.claim(
                    f"{result.title}: {metric.label} of {setting} against {self.reference}{ending}",
                    found.value if limit is None else bad_end,
                    metric.unit,
                    better=metric.better,
                    target=None if limit is None else limit.value,
                )
        return writer.write()

    def _limit(self, measure: str, metric: str) -> Limit | None:
        return next((limit for limit in self.gate.limits if (limit.measure, limit.metric) == (measure, metric)), None)

    def _measure(self, result: MeasureResult) -> dict[str, Any]:
        return {
            "title": result.title,
            "metrics": [{**asdict(metric), "better": metric.better.value} for metric in result.metrics],
            "settings": {
                name: {
                    "overall": _figures(figures.overall),
                    "tasks": {task: _figures(own) for task, own in figures.tasks.items()},
                    "worst": _worst(result, figures),
                    "flagged": [metric.key for metric in result.flags(name, self.controls)],
                }
                for name, figures in result.settings.items()
            },
            "curves": [asdict(curve) for curve in result.curves],
            "grids": [asdict(grid) for grid in result.grids],
            "notes": list(result.notes),
        }

    def _gate(self) -> dict[str, Any] | None:
        if not self.gate.limits:
            return None
        return {
            "limits": {limit.option: limit.value for limit in self.gate.limits},
            "passed": {setting: self.gate.has_passed_by(setting) for setting in self.gate.settings},
            "failures": [asdict(failure) for failure in self.gate.failures],
        }


def _figures(figures: Figures) -> dict[str, Any]:
    return {key: _estimate(estimate) for key, estimate in figures.items()}


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "num_samples": estimate.num_samples}


def _worst(result: MeasureResult, figures: SettingFigures) -> dict[str, Any]:
    """By metric, the task with the worst figure beside the mean."""
    found = ((metric.key, figures.worst(metric)) for metric in result.metrics)
    return {key: {"task": worst[0], **_estimate(worst[1])} for key, worst in found if worst is not None}
