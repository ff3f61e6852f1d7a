"""One HTML file: figures in tiles, tables, and plots drawn by the plotly.js that lies inside it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from kvasir.core.errors import ConfigError, KvasirError


class ReportError(KvasirError):
    """A report that cannot be written."""

    code = "report_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure that stands out; ``note`` says what it is made of."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns that start with ">" are right-aligned, as ``cli.console.print_table`` has it.  ``marked``: rows to
    highlight, by index."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot as plotly.js takes it; see ``report.figures``."""

    spec: dict[str, Any]
    caption: str = ""
    is_wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """``alerts`` stand on top in a colour of their own: what a reader must know before believing the rest."""

    title: str
    subtitle: str = ""
    alerts: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    sections: Sequence[Section] = ()

    def html(self) -> str:
        """Raises ``ConfigError`` when plotly is missing."""
        body = [
            f"<header><h1>{escape(self.title)}</h1><p>{escape(self.subtitle)}</p></header>",
            *(f'<p class="alert">{escape(alert)}</p>' for alert in self.alerts),
            _tiles(self.tiles),
            *(_section(number, section) for number, section in enumerate(self.sections)),
        ]
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style>"
            f"<script>{_plotly_js()}</script></head><body><main>{''.join(body)}</main>"
            f"<script>{_DRAW}</script></body></html>\n"
        )

    def write(self, path: Path) -> None:
        """Raises ``ReportError``, ``ConfigError``."""
        text = self.html()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ReportError(f"The report cannot be written to {path}: {error.strerror or error}.") from error


def check_can_draw() -> None:
    """Raises ``ConfigError`` when plotly is missing: better now than after a long run."""
    _plotly_js()


@cache
def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigError("HTML reports need plotly; install it with: pip install 'kvasir[report]'") from None
    return get_plotlyjs()


def _tiles(tiles: Sequence[Tile]) -> str:
    shown = (
        f'<div class="tile"><span>{escape(tile.label)}</span><b>{escape(tile.value)}</b>'
        f"<small>{escape(tile.note)}</small></div>"
        for tile in tiles
    )
    return f'<div class="tiles">{"".join(shown)}</div>' if tiles else ""


def _section(number: int, section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"]
    if section.text:
        parts.append(f"<p>{escape(section.text)}</p>")
    parts += [_table(table) for table in section.tables]
    if section.figures:
        drawn = (_figure(f"figure-{number}-{index}", figure) for index, figure in enumerate(section.figures))
        parts.append(f'<div class="figures">{"".join(drawn)}</div>')
    return f"<section>{''.join(parts)}</section>"


def _table(table: Table) -> str:
    sides = [' class="right"' if column.startswith(">") else "" for column in table.columns]
    head = "".join(
        f"<th{side}>{escape(column.removeprefix('>'))}</th>" for side, column in zip(sides, table.columns, strict=True)
    )
    rows = []
    for number, row in enumerate(table.rows):
        cells = "".join(f"<td{side}>{escape(cell)}</td>" for side, cell in zip(sides, row, strict=True))
        rows.append(f'<tr class="marked">{cells}</tr>' if number in table.marked else f"<tr>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _figure(name: str, figure: Figure) -> str:
    # No text inside may end the script that holds it, or begin another.
    spec = json.dumps(figure.spec, separators=(",", ":")).replace("<", "\\u003c")
    wide = " wide" if figure.is_wide else ""
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>" if figure.caption else ""
    return (
        f'<figure class="figure{wide}"><div id="{name}" class="plot"></div>{caption}'
        f'<script type="application/json" data-for="{name}">{spec}</script></figure>'
    )


_DRAW = """
for (const holder of document.querySelectorAll('script[data-for]')) {
  const spec = JSON.parse(holder.textContent);
  Plotly.newPlot(holder.dataset.for, spec.data, spec.layout, {responsive: true, displayModeBar: false});
}
"""

_STYLE = """
:root { --ink: #23272e; --soft: #667085; --rule: #e3e6eb; --ground: #f6f7f9; --blue: #1f6fb2; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 64px; }
h1 { margin: 0; font-size: 26px; } h2 { margin: 0 0 8px; font-size: 18px; }
header p { margin: 4px 0 20px; color: var(--soft); }
section { background: #fff; border: 1px solid var(--rule); border-radius: 10px; padding: 18px 20px; margin-top: 18px; }
section > p { margin: 0 0 12px; color: var(--soft); max-width: 90ch; }
.alert { background: #fff4e5; border: 1px solid #f0c48a; border-radius: 10px; padding: 10px 14px; margin: 10px 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; }
.tile { background: #fff; border: 1px solid var(--rule); border-radius: 10px; padding: 12px 16px; }
.tile span, .tile small { display: block; color: var(--soft); font-size: 13px; }
.tile b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 4px 0 12px; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 13px; }
th, td { padding: 5px 16px 5px 0; border-bottom: 1px solid var(--rule); }
th.right, td.right { text-align: right; }
tr.marked td { background: #eaf3fb; font-weight: 600; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 16px; }
.figure { margin: 0; min-width: 0; } .figure.wide { grid-column: 1 / -1; }
.plot { width: 100%; height: 340px; } .wide .plot { height: 380px; }
figcaption { color: var(--soft); font-size: 13px; padding: 2px 8px; }
@media (max-width: 560px) { .figures { grid-template-columns: 1fr; } main { padding: 16px 12px; } }
"""
