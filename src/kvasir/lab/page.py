"""The run as one HTML file that needs nothing from the network."""

from collections.abc import Sequence

from kvasir.lab.figures import MeasureResult
from kvasir.lab.plots import curve_figure, frontier_figures, grid_figures, task_figure
from kvasir.lab.report import QualityRun
from kvasir.lab.tables import TextTable, legend, measure_table, show, summary_table
from kvasir.report.page import Figure, Page, Section, Table, Tile


def quality_page(run: QualityRun) -> Page:
    return Page(
        title=f"What it costs: {run.model}",
        subtitle=(
            f"{_count(run.judged, 'setting')} against {run.reference}; {run.size.value} run, contexts up to "
            f"{run.context:,} tokens, {run.duration_s:,.0f} s; texts: {run.texts}."
        ),
        alerts=_alerts(run),
        tiles=_tiles(run),
        sections=[_summary(run), *_frontier(run), *(_measure(run, result) for result in run.results), _settings(run)],
    )


def _alerts(run: QualityRun) -> list[str]:
    alerts = [f"Gate: {failure.message}" for failure in run.gate.failures]
    if run.skipped:
        alerts.append(f"Not measured, because only servers were asked: {', '.join(run.skipped)}.")
    return alerts


def _tiles(run: QualityRun) -> list[Tile]:
    tiles = []
    for name in run.judged:
        flagged = run.flagged(name)
        seen_by = ", ".join(dict.fromkeys(result.title for result, _ in flagged))
        kl = next((result.figure(name, "mean") for result in run.results if result.name == "kl"), None)
        tiles.append(
            Tile(
                label=name,
                value="no damage seen" if not flagged else f"KL {show(kl).split(' ')[0]}" if kl else "damage",
                note=f"seen by: {seen_by}" if flagged else "by any measure, beyond the controls",
            )
        )
    if run.gate.limits:
        kept = sum(run.gate.has_passed_by(name) for name in run.gate.settings)
        limits = ", ".join(f"{limit.option} {limit.value:g}" for limit in run.gate.limits)
        tiles.append(Tile(label="gate", value=f"{kept} of {len(run.gate.settings)} passed", note=limits))
    return tiles


def _summary(run: QualityRun) -> Section:
    return Section(
        title="Summary",
        text=" ".join([*legend(run), "Intervals are bootstrapped over documents."]),
        tables=(_table(summary_table(run)),),
    )


def _frontier(run: QualityRun) -> Sequence[Section]:
    figures = frontier_figures(run)
    if not figures:
        return ()
    text = f"Damage against the KV bytes that a sequence of {run.context:,} tokens takes for each of its tokens."
    return (Section(title="Frontier", text=text, figures=figures),)


def _measure(run: QualityRun, result: MeasureResult) -> Section:
    figures: list[Figure] = [curve_figure(run, curve) for curve in result.curves]
    figures += [figure for grid in result.grids for figure in grid_figures(run, grid)]
    for metric in result.metrics:
        if metric.is_headline and not result.curves:
            drawn = task_figure(run, result, metric)
            figures += [] if drawn is None else [drawn]
    return Section(
        title=result.title,
        text=" ".join(result.notes),
        tables=(_table(measure_table(run, result)),),
        figures=figures,
    )


def _settings(run: QualityRun) -> Section:
    rows = []
    for name in run.order:
        facts = run.facts.get(name)
        if facts is None:
            rows.append((name, run.servers.get(name, ""), "", ""))
        else:
            flags = ", ".join(f"{flag} {value}" for flag, value in facts.flags.items())
            rows.append((name, flags, facts.model_digest[:12], facts.layout_digest[:12]))
    table = Table(columns=("setting", "effective flags, or address", "model", "KV layout"), rows=rows)
    return Section(title="Settings", text="Digests tie this report to what is served later.", tables=(table,))


def _table(table: TextTable) -> Table:
    return Table(columns=table.columns, rows=table.rows)


def _count(things: Sequence[str], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"
