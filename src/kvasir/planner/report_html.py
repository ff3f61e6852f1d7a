"""A plan as one HTML file that needs no network: key figures, plots, the tables, the commands."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvasir.core.errors import ConfigError
from kvasir.engine.byte_size import format_bytes
from kvasir.planner.plan import Plan
from kvasir.planner.report_plots import plan_figures
from kvasir.planner.report_tables import TextTable, plan_tables

_STYLE = """
:root { --ink: #23272e; --soft: #5b6470; --rule: #e3e6ea; --blue: #1f6fb2; --red: #c8452e; --back: #f6f7f9; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 28px; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 12px; }
.lead { color: var(--soft); margin: 4px 0 24px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(138px, 1fr)); gap: 12px; margin-bottom: 16px; }
.figure, .panel { background: #fff; border: 1px solid var(--rule); border-radius: 10px; }
.figure { padding: 14px 16px; }
.figure b { display: block; font-size: 23px; letter-spacing: -0.02em; }
.figure span { color: var(--soft); font-size: 13px; }
.panel { padding: 18px 20px; margin-bottom: 16px; overflow-x: auto; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(500px, 100%), 1fr)); gap: 16px; }
.plots .panel { margin: 0; padding: 12px; min-width: 0; overflow: hidden; }
.plots { margin-bottom: 16px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--rule); }
th, td { padding: 5px 14px 5px 0; vertical-align: top; }
td.number, th.number { text-align: right; white-space: nowrap; }
tr + tr td { border-top: 1px solid #f1f2f4; }
td:first-child { white-space: nowrap; }
.warning { border-left: 4px solid var(--red); padding: 2px 0 2px 12px; margin: 0 0 10px; }
.note { border-left: 4px solid var(--rule); padding: 2px 0 2px 12px; margin: 0 0 10px; color: var(--soft); }
pre { background: #23272e; color: #f2f3f5; border-radius: 8px; padding: 12px 14px; white-space: pre-wrap; }
pre { overflow-wrap: anywhere; font-size: 12.5px; margin: 4px 0 16px; }
.assumes { color: var(--soft); font-size: 13px; }
"""


def write_html(plan: Plan, path: Path) -> None:
    """Raises ``ConfigError`` when plotly is not installed or the file cannot be written."""
    try:
        path.write_text(plan_html(plan), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The report cannot be written to {path} ({error.strerror or error}).") from error


def plan_html(plan: Plan) -> str:
    """The whole page; plotly's script is part of it."""
    script = _plotly_script()
    title = html.escape(f"Plan for {plan.request.shape.name}")
    body = [
        f"<h1>{html.escape(plan.request.shape.name)}</h1>",
        f'<p class="lead">{html.escape(_lead(plan))}</p>',
        _key_figures(plan),
        _remarks(plan),
        _plots(plan_figures(plan)),
        *(_table(table) for table in plan_tables(plan)),
        _commands(plan),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style>'
        f"<script>{script}</script></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError("The HTML report needs plotly: install kvasir[report].") from error
    return str(get_plotlyjs())


def _lead(plan: Plan) -> str:
    chosen, settings = plan.chosen, plan.request.settings
    replicas = f"{chosen.num_replicas} x " if chosen.num_replicas > 1 else ""
    return (
        f"{settings.engine.value} {settings.effective_version} on {replicas}{chosen.instance.num_devices} x "
        f"{chosen.instance.card.name}, contexts up to {settings.max_model_len:,} tokens, {plan.request.load.users} "
        f"users: prompts {plan.request.load.prompts.text}, outputs {plan.request.load.outputs.text}."
    )


def _key_figures(plan: Plan) -> str:
    chosen = plan.chosen
    figures = [
        (format_bytes(chosen.instance.budget.weight_bytes), "weights on each device"),
        (format_bytes(chosen.instance.pool.num_bytes), "KV pool on each device"),
        (f"{chosen.capacity.planned:,}", "sequences at once, to plan with"),
        (f"{chosen.capacity.worst_case:,.1f}", "at the full context"),
        (f"{chosen.throughput.tpot_s * 1000:,.1f} ms", f"a token with {chosen.throughput.batch} at once"),
    ]
    if chosen.per_hour_usd is not None and chosen.cost is not None:
        figures.append((f"${chosen.per_hour_usd:,.2f}", "an hour, all devices"))
        figures.append((f"${chosen.cost.output:,.2f}", "a million output tokens"))
    cells = "".join(
        f'<div class="figure"><b>{html.escape(value)}</b><span>{html.escape(label)}</span></div>'
        for value, label in figures
    )
    return f'<div class="figures">{cells}</div>'


def _remarks(plan: Plan) -> str:
    lines = [f'<p class="warning">{html.escape(sentence)}</p>' for _, sentence in plan.traps]
    lines += [f'<p class="note">{html.escape(note)}</p>' for note in plan.notes]
    return f'<div class="panel"><h2>Mind</h2>{"".join(lines)}</div>' if lines else ""


def _plots(figures: Sequence[Any]) -> str:
    """Each figure in a panel, in a row as far as the window is wide."""
    config = {"displayModeBar": False, "responsive": True}
    drawn = [figure.to_html(include_plotlyjs=False, full_html=False, config=config) for figure in figures]
    return f'<div class="plots">{"".join(f"<div class=panel>{plot}</div>" for plot in drawn)}</div>'


def _table(table: TextTable) -> str:
    is_number = [column.startswith(">") for column in table.columns] or [False] * len(table.rows[0])
    head = ""
    if table.columns:
        cells = zip(table.columns, is_number, strict=True)
        head = f"<tr>{''.join(_cell('th', column.removeprefix('>'), number) for column, number in cells)}</tr>"
    rows = [
        f"<tr>{''.join(_cell('td', text, number) for text, number in zip(row, is_number, strict=True))}</tr>"
        for row in table.rows
    ]
    return f'<div class="panel"><h2>{html.escape(table.title)}</h2><table>{head}{"".join(rows)}</table></div>'


def _cell(tag: str, text: str, is_number: bool) -> str:
    return f"<{tag}{' class=number' if is_number else ''}>{html.escape(text)}</{tag}>"


def _commands(plan: Plan) -> str:
    parts = []
    for entry in plan.commands:
        if entry.flags is None:
            parts.append(f'<p class="assumes">{html.escape(f"{entry.engine.value}: {entry.reason}")}</p>')
        else:
            parts.append(f'<div class="assumes">{html.escape(entry.flags.assumes)}</div>')
            parts.append(f"<pre>{html.escape(entry.flags.command)}</pre>")
    return f'<div class="panel"><h2>Commands for these devices</h2>{"".join(parts)}</div>'
