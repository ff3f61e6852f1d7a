"""The HTML report of a test, a sweep or a comparison: what was asked, what came, and what to doubt."""

from collections.abc import Sequence
from datetime import datetime

from kvasir.loadtest import charts, tables
from kvasir.loadtest.compare import Change, Comparison
from kvasir.loadtest.findings import band_notes, notes_on, sweep_notes
from kvasir.loadtest.load_test import LoadTest, RunData
from kvasir.loadtest.measures import Measures
from kvasir.loadtest.result import DEFINITIONS, BenchResult
from kvasir.loadtest.sweep import Sweep, SweepPoint, Verdict
from kvasir.report import figures
from kvasir.report.figures import Axes
from kvasir.report.page import Figure, Page, Section, Table, Tile
from kvasir.workload.latency import Distribution

_DEFINITIONS = "  ".join(f"{name.upper()}: {text}." for name, text in DEFINITIONS.items())


def load_page(result: BenchResult, test: LoadTest) -> Page:
    measures, slo, first = result.measures, test.settings.measure.slo, result.runs[0]
    sections = [
        Section(
            title="Latencies in ms",
            text=_DEFINITIONS,
            tables=[_table(*tables.latency_table(measures))],
            figures=charts.latency_figures(result.records, slo),
        )
    ]
    if measures.turns:
        table = _table(*tables.turns_table(measures))
        sections.append(Section(title="Turn by turn", tables=[table], figures=[charts.by_turn(result.records)]))
    for run in result.runs:
        title = "Over time" if len(result.runs) == 1 else f"Over time: {run.point.label}"
        sections.append(Section(title=title, figures=[charts.timeline(run), *charts.over_time(run)]))
        if run.gauges is not None:
            text = f"Sampled from {run.gauges.url}."
            sections.append(Section(title="The server's side", text=text, figures=charts.gauge_figures(run.gauges)))
    if measures.failures:
        sections.append(Section(title="Failures", tables=[_table(*tables.failures_table(measures))]))
    if len(result.runs) > 1:
        sections.append(Section(title="Run by run", tables=[_table(*tables.runs_table(result))]))
    rows = [*tables.facts_rows(result), *_asked(first, test)]
    sections.append(Section(title="Everything else", tables=[Table(columns=("", ""), rows=rows)]))
    return Page(
        title=f"Load test of {test.preflight.model.name}",
        subtitle=_subtitle(first, test),
        alerts=notes_on(result, test),
        tiles=_tiles(result),
        sections=sections,
    )


def sweep_page(sweep: Sweep, points: Sequence[SweepPoint], verdict: Verdict | None, test: LoadTest) -> Page:
    columns, rows = tables.sweep_table(points, verdict)
    marked = frozenset(number for number, point in enumerate(points) if verdict is not None and point is verdict.best)
    first = points[0].result.runs[0]
    asked = [_workload_row(first), *_body_rows(first, test)]
    tiles = []
    if verdict is not None:
        best = verdict.best.measures
        tiles = [
            Tile(label="best operating point", value=verdict.best.label, note=f"knee: {verdict.knee.label}"),
            Tile(label="output there", value=f"{best.output_throughput:,.0f} tok/s", note=_pace(best)),
            *_latency_tiles(best),
        ]
    return Page(
        title=f"Sweep of {test.preflight.model.name} over {sweep.setting.value}",
        subtitle=_subtitle(first, test),
        alerts=sweep_notes(points, verdict, test),
        tiles=tiles,
        sections=[
            Section(
                title="Operating points, latencies in ms",
                text=verdict.reason if verdict is not None else "",
                tables=[Table(columns=columns, rows=rows, marked=marked)],
                figures=charts.sweep_figures(sweep, points, verdict),
            ),
            Section(title="What the words mean", text=_DEFINITIONS + "  " + _KNEE),
            Section(title="What was asked", tables=[Table(columns=("", ""), rows=asked)]),
        ],
    )


_KNEE = (
    "Knee: the point with most output tokens per second and second of mean latency (Kleinrock's power); beyond it more "
    "load buys queueing rather than output."
)


def comparison_page(comparison: Comparison) -> Page:
    columns, rows = tables.comparison_table(comparison)
    verdicts = [difference.verdict for difference in comparison.differences]
    marked = frozenset(n for n, verdict in enumerate(verdicts) if verdict in (Change.BETTER, Change.WORSE))
    return Page(
        title="Two load tests compared",
        subtitle=f"A: {comparison.a.name}, B: {comparison.b.name}",
        alerts=band_notes(comparison),
        tiles=[Tile(label=f"measures {change.value}", value=str(verdicts.count(change))) for change in Change],
        sections=[
            Section(
                title="B against A",
                text="Marked lines changed by more than the noise.",
                tables=[Table(columns=columns, rows=rows, marked=marked)],
                figures=_overlays(comparison),
            )
        ],
    )


def _overlays(comparison: Comparison) -> list[Figure]:
    """Both distributions of each latency, where both files have their requests."""
    drawn = []
    for name in ("ttft", "tpot", "itl", "e2el"):
        pairs = [(side.latencies_s.get(name), side.name) for side in (comparison.a, comparison.b)]
        if any(values is None or len(values) < 2 for values, _ in pairs):
            continue
        traces = [
            figures.cumulative(f"{letter}: {label}", [1000 * float(value) for value in values], colour)
            for (values, label), letter, colour in zip(pairs, "AB", (figures.GREY, figures.BLUE), strict=True)
            if values is not None
        ]
        axes = Axes(title=f"{name.upper()}: share within", x="ms", y="%")
        drawn.append(Figure(spec=figures.figure(axes, traces)))
    return drawn


def _table(columns: tables.Columns, rows: tables.Rows) -> Table:
    return Table(columns=columns, rows=rows)


def _subtitle(run: RunData, test: LoadTest) -> str:
    target = test.settings.endpoint.target
    date = datetime.fromtimestamp(run.played.started_at).strftime("%Y-%m-%d %H:%M")
    return f"{target.url}/v1{target.api.route} on {date}"


def _tiles(result: BenchResult) -> list[Tile]:
    measures = result.measures
    tiles = [
        Tile(label="requests", value=f"{measures.num_completed} of {result.num_planned}", note=_share_ok(measures)),
        Tile(
            label="output",
            value=f"{measures.output_throughput:,.0f} tok/s",
            note=_pace(measures),
        ),
        *_latency_tiles(measures),
    ]
    if measures.goodput is not None:
        tiles.append(
            Tile(
                label="goodput",
                value=f"{measures.request_goodput:.2f} req/s",
                note=f"within {measures.goodput.slo}",
            )
        )
    if measures.prefix_hit_rate is not None:
        tiles.append(Tile(label="prompt tokens cached", value=f"{100 * measures.prefix_hit_rate:.0f} %"))
    return tiles


def _latency_tiles(measures: Measures) -> list[Tile]:
    named = (("time to first token", measures.ttft_s), ("time per later token", measures.tpot_s))
    return [
        Tile(label=label, value=f"{1000 * spread.median:,.0f} ms", note=_tail(spread))
        for label, spread in named
        if spread is not None
    ]


def _tail(spread: Distribution) -> str:
    """The largest percentile beside the median."""
    q = max(spread.percentiles)
    return f"median; p{q:g} {1000 * spread.percentiles[q]:,.0f} ms"


def _pace(measures: Measures) -> str:
    return f"{measures.request_throughput:.2f} requests/s"


def _share_ok(measures: Measures) -> str:
    if measures.num_failed:
        return f"{measures.num_failed} failed"
    return f"{measures.duration_s:.1f} s"


def _asked(run: RunData, test: LoadTest) -> tables.Rows:
    limit = run.point.max_concurrency
    return [
        _workload_row(run),
        ["arrivals", _pace_text(run)],
        ["in flight at most", "no limit" if limit is None else str(limit)],
        *_body_rows(run, test),
    ]


def _workload_row(run: RunData) -> list[str]:
    details = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in run.workload.items())
    return ["workload", f"{run.workload_name}: {details}"]


def _pace_text(run: RunData) -> str:
    arrivals = run.point.arrivals
    if arrivals is None:
        return "the trace's own times"
    if arrivals.rate == float("inf"):
        return "all at once"
    if arrivals.end_rate is not None:
        return f"{arrivals.rate:g} to {arrivals.end_rate:g} requests/s, {arrivals.ramp.value}"
    return f"{arrivals.rate:g} requests/s, burstiness {arrivals.burstiness:g}"


def _body_rows(run: RunData, test: LoadTest) -> tables.Rows:
    body = test.settings.endpoint.body
    return [
        ["seed, warm-ups", f"{run.point.seed}, {test.settings.load.num_warmups}"],
        ["temperature, ignore_eos", f"{body.temperature}, {str(body.ignores_eos).lower()}"],
    ]
