"""What a measure brings back: estimates per setting and task, and the curves and grids that a report draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvasir.claims.result_file import Better
from kvasir.lab.estimate import Estimate

Figures = Mapping[str, Estimate]
"""Metric key -> estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """``is_damage``: a difference to the reference that is 0 when nothing was lost and grows with what was; where it is
    the loss of another metric, its key is that metric's with "_loss".
    ``is_headline``: shown where there is room for a line or two a measure."""

    key: str
    label: str
    unit: str = ""
    better: Better = Better.LOWER
    is_damage: bool = False
    is_headline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line per setting over common ``x``."""

    title: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    lines: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """One heat map per setting: ``cells[setting][row][column]``, NaN-free, between 0 and 1."""

    title: str
    row_label: str
    rows: tuple[str, ...]
    column_label: str
    columns: tuple[str, ...]
    cells: Mapping[str, tuple[tuple[float, ...], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFigures:
    """``overall`` over all tasks, ``tasks`` by task; a task has no damage figure that overall has not."""

    overall: Figures
    tasks: Mapping[str, Figures] = field(default_factory=dict)

    def worst(self, metric: Metric) -> tuple[str, Estimate] | None:
        """The task with the most damage by ``metric``; None where there are no tasks."""
        there = [(task, figures[metric.key]) for task, figures in self.tasks.items() if metric.key in figures]
        sign = 1.0 if metric.better is Better.LOWER else -1.0
        return max(there, key=lambda item: sign * item[1].value, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureResult:
    """``settings`` holds the reference, the floor (where there is one) and every setting the measure could look at.

    ``damage`` are the metrics that tell whether something was lost, the telling one first.
    """

    name: str
    title: str
    metrics: tuple[Metric, ...]
    settings: Mapping[str, SettingFigures]
    curves: tuple[Curve, ...] = ()
    grids: tuple[Grid, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def damage(self) -> tuple[Metric, ...]:
        return tuple(metric for metric in self.metrics if metric.is_damage)

    def figure(self, setting: str, key: str) -> Estimate | None:
        found = self.settings.get(setting)
        return None if found is None else found.overall.get(key)

    def flags(self, setting: str, controls: Sequence[str]) -> tuple[Metric, ...]:
        """The damage metrics whose whole interval lies above 0 and above everything the intervals of ``controls`` hold:
        subjects that are known to be no worse than the reference."""
        flagged = []
        for metric in self.damage:
            found = self.figure(setting, metric.key)
            if found is None or setting in controls:
                continue
            harmless = (self.figure(control, metric.key) for control in controls)
            if found.lowest > max([0.0, *(least.highest for least in harmless if least is not None)]):
                flagged.append(metric)
        return tuple(flagged)
