"""How commands speak: tables for people, JSON for programs, one red sentence for a refusal."""

import json
import sys
from collections.abc import Sequence
from typing import Any


def print_error(message: str) -> None:
    """One sentence on stderr, red where the terminal has colours."""
    from rich.console import Console
    from rich.text import Text

    text = Text.assemble(("error: ", "bold red"), (message, "red"))
    Console(stderr=True, soft_wrap=True).print(text)


def print_note(message: str) -> None:
    """A remark on stderr, so that stdout stays clean for results."""
    print(message, file=sys.stderr, flush=True)


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, ensure_ascii=False), flush=True)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """``columns`` that start with ">" are right-aligned (the sign is not shown); no columns means no header line."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    width = max((len(row) for row in rows), default=0)
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD if columns else box.SIMPLE)
    table.show_header = bool(columns)
    for column in columns or [""] * width:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        table.add_row(*row)
    # Off a terminal there is no width to respect, and a wrapped table cannot be read or cut.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)
    console.print(table)
