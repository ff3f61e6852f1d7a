"""The plots of a quality report: frontier, curves by position, heat maps of needles, bars by task."""

from collections.abc import Sequence
from typing import Any

from kvasir.lab.figures import Curve, Grid, MeasureResult, Metric
from kvasir.lab.report import QualityRun
from kvasir.lab.tables import labelled
from kvasir.report.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Axes, Trace, curve, figure
from kvasir.report.page import Figure

_COLOURS = (BLUE, RED, ORANGE, GREEN, PURPLE, "#2a9d9d", "#b5478c", "#6b7f2a")
_FRONTIERS = (("kl", "mean"), ("copy", "gap"), ("passkey", "found"), ("ruler", "answer_loss"))
"""(measure, metric) that are drawn against bytes per token."""
_HEAT = [[0.0, "#b3382c"], [0.5, "#f0c869"], [1.0, "#2f8f5b"]]


def frontier_figures(run: QualityRun) -> list[Figure]:
    """Damage against KV bytes per token, one point a setting; empty for servers, whose bytes nobody knows."""
    figures = []
    for measure, key in _FRONTIERS:
        result = next((result for result in run.results if result.name == measure), None)
        if result is not None and run.facts:
            metric = next(metric for metric in result.metrics if metric.key == key)
            figures.append(_frontier(run, result, metric))
    return figures


def curve_figure(run: QualityRun, drawn: Curve) -> Figure:
    axes = Axes(title=drawn.title, x=drawn.x_label, y=drawn.y_label)
    traces = [
        curve(name, drawn.x, drawn.lines[name], colour_of(run, name), has_marks=True)
        for name in run.order
        if name in drawn.lines
    ]
    return Figure(spec=figure(axes, traces))


def grid_figures(run: QualityRun, grid: Grid) -> list[Figure]:
    """One heat map a setting, all on one scale."""
    figures = []
    for name in run.order:
        if name not in grid.cells:
            continue
        cells = grid.cells[name]
        trace: Trace = {
            "type": "heatmap",
            "x": list(grid.columns),
            "y": list(grid.rows),
            "z": [list(row) for row in cells],
            "text": [[f"{value:.0%}" for value in row] for row in cells],
            "texttemplate": "%{text}",
            "zmin": 0,
            "zmax": 1,
            "colorscale": _HEAT,
            "showscale": False,
            "xgap": 2,
            "ygap": 2,
        }
        spec = figure(Axes(title=f"{grid.title}: {name}", x=grid.column_label, y=grid.row_label), [trace])
        # Rows and columns are names in their order, not numbers on a scale; the text's beginning is on top.
        spec["layout"]["xaxis"] |= {"type": "category"}
        spec["layout"]["yaxis"] = {**spec["layout"]["yaxis"], "type": "category", "autorange": "reversed"}
        spec["layout"]["yaxis"].pop("rangemode")
        figures.append(Figure(spec=spec))
    return figures


def task_figure(run: QualityRun, result: MeasureResult, metric: Metric) -> Figure | None:
    """Bars by task, a colour a setting, with their intervals; None where the measure has no tasks."""
    tasks = list(result.settings[run.reference].tasks)
    if not tasks:
        return None
    traces: list[Trace] = []
    for name in run.order:
        if name not in result.settings:
            continue
        found = [result.settings[name].tasks[task].get(metric.key) for task in tasks]
        if all(estimate is None for estimate in found):
            continue
        values = [0.0 if estimate is None else estimate.value for estimate in found]
        highs = [0.0 if estimate is None else estimate.highest for estimate in found]
        lows = [0.0 if estimate is None else estimate.lowest for estimate in found]
        traces.append(
            {
                "type": "bar",
                "name": name,
                "x": tasks,
                "y": values,
                "marker": {"color": colour_of(run, name)},
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [high - value for high, value in zip(highs, values, strict=True)],
                    "arrayminus": [value - low for low, value in zip(lows, values, strict=True)],
                    "thickness": 1,
                    "width": 2,
                },
            }
        )
    spec = figure(Axes(title=f"{result.title} by task: {labelled(metric)}", x="", y=metric.unit), traces)
    spec["layout"]["barmode"] = "group"
    return Figure(spec=spec, is_wide=len(tasks) > 4)


def colour_of(run: QualityRun, name: str) -> str:
    """The same colour for a setting in every plot; the reference and its controls are grey."""
    if name == run.reference:
        return "#4a4f57"
    if name in (run.floor, run.nudged):
        return GREY if name == run.floor else "#b9bdc4"
    return _COLOURS[[*run.order].index(name) % len(_COLOURS)]


def _frontier(run: QualityRun, result: MeasureResult, metric: Metric) -> Figure:
    traces: list[Trace] = []
    for name in _with_bytes(run):
        found = result.figure(name, metric.key)
        if found is None:
            continue
        point: dict[str, Any] = {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [run.facts[name].bytes_per_token],
            "y": [found.value],
            "marker": {"color": colour_of(run, name), "size": 11},
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [found.highest - found.value],
                "arrayminus": [found.value - found.lowest],
                "thickness": 1,
            },
        }
        traces.append(point)
    axes = Axes(title=f"{result.title} against KV bytes", x="KV bytes per token", y=labelled(metric))
    spec = figure(axes, traces)
    most_bytes = max(run.facts[name].bytes_per_token for name in _with_bytes(run))
    spec["layout"]["xaxis"] |= {"range": [0, 1.1 * most_bytes]}
    spec["layout"]["legend"] |= {"y": -0.34}
    return Figure(spec=spec)


def _with_bytes(run: QualityRun) -> Sequence[str]:
    """The floor lies where the reference lies; the nudged one shows what any change at all costs there."""
    return [name for name in run.order if name in run.facts and name != run.floor]
