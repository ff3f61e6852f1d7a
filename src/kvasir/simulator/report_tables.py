"""A report as tables of text, for the terminal and for HTML alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.simulator.capacity import Capacity
from kvasir.simulator.outcome import SimulationResult
from kvasir.simulator.report import SimulationReport
from kvasir.simulator.sweep import Axis, SweepPoint, shown
from kvasir.workload.latency import Distribution

_QS = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Columns that start with ">" are right-aligned."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def seconds(value: float) -> str:
    """Three significant digits in the unit that suits."""
    if value < 1e-3 and value:
        return f"{value * 1e6:.3g} us"
    if value < 1.0:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"


def latency_table(report: SimulationReport) -> TextTable:
    measures = (
        ("time to first token", report.ttft),
        ("  of it in the queue", report.queue),
        ("time per output token", report.tpot),
        ("gap between tokens", report.itl),
        ("end to end", report.e2e),
    )
    return TextTable(
        title="Latency",
        columns=("", ">mean", *(f">p{q:g}" for q in _QS), ">max"),
        rows=[(name, *_cells(distribution)) for name, distribution in measures if distribution is not None],
    )


def _cells(distribution: Distribution) -> list[str]:
    values = [distribution.mean, *(distribution.percentiles[q] for q in _QS), distribution.max]
    return [seconds(value) for value in values]


def summary_table(report: SimulationReport) -> TextTable:
    """Two columns: what, and how much."""
    refused = ", ".join(f"{count:,} {code}" for code, count in sorted(report.refused.items()))
    rows = [
        ("answered", f"{report.num_answered:,} of {report.num_requests:,} requests in {seconds(report.duration_s)}"),
        *([("refused", refused)] if refused else []),
        ("throughput", f"{report.request_rate:.3g} requests/s, {report.output_rate:,.0f} output tokens/s"),
        (
            "prompt tokens",
            f"{report.num_prompt_tokens:,}, {percent(report.hit_rate)} found in the cache "
            f"({percent(report.hit_rate_last_half)} in the last half)",
        ),
        ("preemptions", f"{report.num_preemptions:,}"),
        ("running", f"{report.mean_running:.1f} on average, {report.max_running:,} at most on one instance"),
        (
            "blocks in use",
            f"{percent(report.mean_used_blocks / report.num_blocks)} of {report.num_blocks:,} on average, "
            f"{percent(report.peak_used_blocks / report.num_blocks)} at most",
        ),
        ("computing", f"{percent(report.busy_fraction)} of the time, {report.num_steps:,} steps"),
    ]
    if not report.slo.is_empty:
        rows.append(
            (
                f"goodput ({report.slo})",
                f"{report.goodput:.3g} requests/s, {percent(report.good_fraction)} of all requests",
            )
        )
    if report.money is not None:
        money = report.money
        rows.append(
            (
                f"dollars at {money.price_per_hour:.2f}/h",
                f"{money.per_million_output:.3g} per million output tokens, {money.per_million_tokens:.3g} per million "
                f"of all, {money.per_million_computed_input:.3g} per million computed prompt tokens "
                f"(hit rate {percent(report.hit_rate)})",
            )
        )
    return TextTable(title="Simulation", columns=(), rows=rows)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def instance_table(result: SimulationResult) -> TextTable:
    return TextTable(
        title="Instances",
        columns=(
            "instance",
            ">requests",
            ">busy",
            ">running",
            ">most",
            ">blocks used",
            ">peak",
            ">preemptions",
            ">hits",
        ),
        rows=[
            (
                str(one.instance_id),
                f"{one.num_requests:,}",
                percent(one.busy_s / result.duration_s if result.duration_s else 0.0),
                f"{one.timeline.mean_running():.1f}",
                f"{one.timeline.max_running:,}",
                percent(one.timeline.mean_used() / one.num_blocks),
                percent(one.timeline.peak_used / one.num_blocks),
                f"{one.num_preemptions:,}",
                percent(hit_rate_of(result, one.instance_id)),
            )
            for one in result.instances
        ],
    )


def hit_rate_of(result: SimulationResult, instance_id: int) -> float:
    own = [outcome for outcome in result.outcomes if outcome.instance_id == instance_id]
    wanted = sum(outcome.num_prompt_tokens for outcome in own)
    return sum(outcome.num_cached_tokens for outcome in own) / wanted if wanted else 0.0


def sweep_table(axes: Sequence[Axis], points: Sequence[SweepPoint]) -> TextTable:
    has_slo = any(point.report is not None and not point.report.slo.is_empty for point in points)
    has_money = any(point.report is not None and point.report.money is not None for point in points)
    columns = [
        *(f">{axis.name}" for axis in axes),
        *(">hit rate", ">TTFT p50", ">TTFT p99", ">TPOT p50", ">output tok/s", ">preempted", ">refused"),
        *([">good"] if has_slo else []),
        *([">$/M output"] if has_money else []),
    ]
    rows = []
    for point in points:
        values = [shown(value) for value in point.values]
        if point.report is None:
            rows.append((*values, point.error or "", *[""] * (len(columns) - len(values) - 1)))
            continue
        rows.append((*values, *_sweep_cells(point.report, has_slo, has_money)))
    return TextTable(title="Sweep", columns=columns, rows=rows)


def _sweep_cells(report: SimulationReport, has_slo: bool, has_money: bool) -> list[str]:
    cells = [
        percent(report.hit_rate),
        "-" if report.ttft is None else seconds(report.ttft.median),
        "-" if report.ttft is None else seconds(report.ttft.percentiles[99.0]),
        "-" if report.tpot is None else seconds(report.tpot.median),
        f"{report.output_rate:,.0f}",
        f"{report.num_preemptions:,}",
        f"{report.num_requests - report.num_answered:,}",
    ]
    if has_slo:
        cells.append(percent(report.good_fraction))
    if has_money:
        cells.append("-" if report.money is None else f"{report.money.per_million_output:.3g}")
    return cells


def capacity_table(capacity: Capacity) -> TextTable:
    return TextTable(
        title=f"Probes for {percent(capacity.question.attainment)} within {capacity.question.slo}",
        columns=(">requests/s", ">good", "", ">TTFT p50", ">TTFT p99", ">TPOT p50", ">TPOT p99", ">output tok/s"),
        rows=[
            (
                f"{probe.rate:.3g}",
                percent(probe.report.good_fraction),
                "meets" if probe.is_met else "too much",
                "-" if probe.report.ttft is None else seconds(probe.report.ttft.median),
                "-" if probe.report.ttft is None else seconds(probe.report.ttft.percentiles[99.0]),
                "-" if probe.report.tpot is None else seconds(probe.report.tpot.median),
                "-" if probe.report.tpot is None else seconds(probe.report.tpot.percentiles[99.0]),
                f"{probe.report.output_rate:,.0f}",
            )
            for probe in capacity.probes
        ],
    )
