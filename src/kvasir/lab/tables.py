"""The run as tables of text: what the terminal prints and the HTML report shows."""

import math
from dataclasses import dataclass

from kvasir.claims.result_file import Better
from kvasir.lab.estimate import Estimate
from kvasir.lab.figures import MeasureResult, Metric
from kvasir.lab.report import QualityRun

FLAG_SIGN = "*"


def legend(run: QualityRun) -> list[str]:
    """What the signs and the controls of a table mean."""
    sentences = [
        f"{FLAG_SIGN} damage: the whole 95 % interval lies above 0 and above the controls';  ↑ higher is better.",
        f"{run.floor}: the same setting in other batches and chunks; what it differs by is noise.",
    ]
    if run.nudged is not None:
        sentences.append(
            f"{run.nudged}: attention scores off by a millionth, as another order of summation would have it; "
            "different and no worse, so a setting that differs by as much may be no worse either."
        )
    return sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Columns that start with ">" are right-aligned (see ``cli.console.print_table``)."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def summary_table(run: QualityRun) -> TextTable:
    """Headlines of every measure with the worst task beside the mean; one column a setting."""
    columns = ("measure", "figure", *(f">{name}" for name in run.order))
    rows = [("KV cache", "bytes/token", *(_bytes_per_token(run, name) for name in run.order))]
    for result in run.results:
        for metric in result.metrics:
            if metric.is_headline:
                own = _metric_rows(run, result, metric, has_worst=True)
                is_named = any(row[0] == result.title for row in rows)
                rows += [("", *row[1:]) for row in own] if is_named else own
    title = f"Quality of {run.model} ({run.size.value}, context {run.context}), 95 % intervals in brackets"
    return TextTable(title=title, columns=columns, rows=tuple(rows))


def measure_table(run: QualityRun, result: MeasureResult) -> TextTable:
    """Every metric of one measure."""
    rows: list[tuple[str, ...]] = []
    for metric in result.metrics:
        rows += _metric_rows(run, result, metric, has_worst=metric.is_headline)
    columns = ("figure", *(f">{name}" for name in run.order))
    return TextTable(title=result.title, columns=columns, rows=tuple(row[1:] for row in rows))


def task_table(run: QualityRun, result: MeasureResult, metric: Metric) -> TextTable:
    """One metric by task."""
    tasks = list(result.settings[run.reference].tasks)
    shown = [name for name in run.order if name in result.settings]
    rows = []
    for task in tasks:
        found = [result.settings[name].tasks[task].get(metric.key) for name in shown]
        rows.append((task, *("" if estimate is None else show(estimate) for estimate in found)))
    columns = ("task", *(f">{name}" for name in shown))
    return TextTable(title=f"{result.title}: {labelled(metric)}", columns=columns, rows=tuple(rows))


def show(estimate: Estimate) -> str:
    """A value, with its interval where there is one that is not a point."""
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return short(estimate.value)
    value, low, high = alike(estimate.value, estimate.low, estimate.high)
    return f"{value} [{low}, {high}]"


def short(value: float, num_digits: int = 3) -> str:
    """Significant digits; 0 is written 0, so that an exact floor can be told from a small one."""
    return "0" if value == 0 else f"{value:.{num_digits}g}"


def alike(value: float, *others: float) -> list[str]:
    """``value`` with three significant digits and ``others`` to the same place, so that 0.998 never lies in [1, 1]."""
    size = abs(value)
    if value and not 1e-4 <= size < 1e4:
        return [short(value), *(short(other, 2) for other in others)]
    largest = size or max(map(abs, others), default=0.0)
    num_decimals = max(0, 2 - math.floor(math.log10(largest))) if largest else 0
    if num_decimals > 6:
        return [short(value), *(short(other, 2) for other in others)]
    return [short(value), *(f"{other:.{num_decimals}f}" for other in others)]


def labelled(metric: Metric) -> str:
    unit = f", {metric.unit}" if metric.unit and metric.unit != "share" else ""
    arrow = "" if metric.better is Better.LOWER else " ↑"
    return f"{metric.label}{unit}{arrow}"


def _metric_rows(run: QualityRun, result: MeasureResult, metric: Metric, *, has_worst: bool) -> list[tuple[str, ...]]:
    cells, worst_cells = [], []
    for name in run.order:
        figures = result.settings.get(name)
        found = None if figures is None else figures.overall.get(metric.key)
        if figures is None or found is None:
            cells.append("")
            worst_cells.append("")
            continue
        is_flagged = {metric.key, f"{metric.key}_loss"} & {flag.key for flag in result.flags(name, run.controls)}
        cells.append(show(found) + (f" {FLAG_SIGN}" if is_flagged else ""))
        worst = figures.worst(metric)
        is_telling = worst is not None and worst[1].value != found.value
        worst_cells.append(f"{worst[0]}: {short(worst[1].value)}" if worst is not None and is_telling else "")
    rows = [(result.title, labelled(metric), *cells)]
    if has_worst and any(worst_cells):
        rows.append(("", "  worst task", *worst_cells))
    return rows


def _bytes_per_token(run: QualityRun, name: str) -> str:
    facts = run.facts.get(name)
    return "" if facts is None else f"{facts.bytes_per_token:,.0f}"
