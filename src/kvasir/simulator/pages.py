"""Simulations as HTML pages: one run, a sweep, a capacity search, a curve of hit rates."""

from collections.abc import Sequence

from kvasir.report.page import Page, Section, Table, Tile
from kvasir.simulator.cache_replay import CacheReplay
from kvasir.simulator.capacity import Capacity
from kvasir.simulator.charts import (
    capacity_chart,
    hit_curve_chart,
    instance_chart,
    latency_charts,
    sweep_charts,
    time_charts,
)
from kvasir.simulator.hit_table import hit_table
from kvasir.simulator.outcome import SimulationResult
from kvasir.simulator.report import SimulationReport
from kvasir.simulator.report_tables import (
    TextTable,
    capacity_table,
    instance_table,
    latency_table,
    percent,
    seconds,
    summary_table,
    sweep_table,
)
from kvasir.simulator.sweep import Axis, SweepPoint

_HOPELESS_WAIT = 0.2


def run_page(result: SimulationResult, report: SimulationReport, subtitle: str, notes: Sequence[str]) -> Page:
    sections = [
        Section(title="Latency", tables=[_table(latency_table(report))], figures=latency_charts(result, report.slo)),
        Section(title="Over time", figures=time_charts(result)),
    ]
    if len(result.instances) > 1:
        sections.append(
            Section(title="Fleet", tables=[_table(instance_table(result))], figures=[instance_chart(result)])
        )
    sections.append(Section(title="All figures", tables=[_table(summary_table(report))]))
    return Page(
        title="Simulation",
        subtitle=subtitle,
        alerts=[*alerts_of(report), *notes],
        tiles=_tiles(report),
        sections=sections,
    )


def sweep_page(axes: Sequence[Axis], points: Sequence[SweepPoint], subtitle: str, notes: Sequence[str]) -> Page:
    return Page(
        title=f"Sweep over {', '.join(axis.name for axis in axes)}",
        subtitle=subtitle,
        alerts=notes,
        sections=[
            Section(title="Every combination", tables=[_table(sweep_table(axes, points))]),
            Section(title=f"Along {axes[0].name}", figures=sweep_charts(axes, points)),
        ],
    )


def capacity_page(capacity: Capacity, subtitle: str, notes: Sequence[str]) -> Page:
    question = capacity.question
    asked = f"{percent(question.attainment)} of requests within {question.slo} (ms)"
    tiles = [Tile(label="capacity", value=f"{capacity.rate:.3g} requests/s", note=asked)]
    if capacity.best is not None:
        tiles += _tiles(capacity.best.report)[1:]
    return Page(
        title="Capacity",
        subtitle=subtitle,
        alerts=notes,
        tiles=tiles,
        sections=[
            Section(
                title="Rates that were tried",
                tables=[_table(capacity_table(capacity))],
                figures=[capacity_chart(capacity)],
            )
        ],
    )


def hits_page(runs: Sequence[CacheReplay], from_share: float, subtitle: str) -> Page:
    return Page(
        title="Prefix cache hit rates",
        subtitle=subtitle,
        sections=[
            Section(
                title="By size and policy",
                text=(
                    "Every request meets the cache alone, in order of arrival. A hit is a run of blocks from the start "
                    "of the prompt, counted in tokens. Belady's algorithm knows the future: no policy can hit more."
                ),
                tables=[_table(hit_table(runs, from_share))],
                figures=[hit_curve_chart(runs, from_share)],
            )
        ],
    )


def _table(table: TextTable) -> Table:
    columns = table.columns or [""] * max(len(row) for row in table.rows)
    return Table(columns=columns, rows=table.rows)


def _tiles(report: SimulationReport) -> list[Tile]:
    tiles = [
        Tile(
            label="answered",
            value=f"{report.num_answered:,}",
            note=f"of {report.num_requests:,} requests in {seconds(report.duration_s)}",
        ),
        Tile(label="hit rate", value=percent(report.hit_rate), note="of prompt tokens found in the cache"),
    ]
    for label, distribution in (("TTFT", report.ttft), ("TPOT", report.tpot)):
        if distribution is not None:
            note = f"median; p99 {seconds(distribution.percentiles[99.0])}"
            tiles.append(Tile(label=label, value=seconds(distribution.median), note=note))
    tiles.append(
        Tile(label="output", value=f"{report.output_rate:,.0f} tok/s", note=f"{report.request_rate:.3g} requests/s")
    )
    if not report.slo.is_empty:
        tiles.append(Tile(label="good", value=percent(report.good_fraction), note=f"within {report.slo} (ms)"))
    if report.money is not None:
        note = f"per million output tokens; {report.money.per_million_tokens:.3g} of all tokens"
        tiles.append(Tile(label="dollars", value=f"{report.money.per_million_output:.3g}", note=note))
    return tiles


def alerts_of(report: SimulationReport) -> list[str]:
    """What to know before believing the figures."""
    alerts = []
    if report.num_answered < report.num_requests:
        reasons = ", ".join(f"{count:,} {code}" for code, count in report.refused.items())
        alerts.append(
            f"{report.num_requests - report.num_answered:,} requests were refused ({reasons}) and are in no latency."
        )
    if report.queue is not None and report.queue.percentiles[99.0] > _HOPELESS_WAIT * report.duration_s:
        alerts.append(
            "Requests wait for a fifth of the whole run and more: this deployment cannot keep up with this traffic, "
            "and its latencies depend on how long the trace is."
        )
    return alerts
