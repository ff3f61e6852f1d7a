"""Draws ``core.progress`` on the terminal: one bar a stage, gone when the work is done."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvasir.core.progress import Progress

# Off a terminal a stage is worth a line only when somebody had to wait for it.
_NOTED_WAIT_S = 1.0
_START = "start"


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Yields a ``Progress`` that draws on stderr meanwhile: bars on a terminal, else a line for each long stage."""
    if sys.stderr.isatty():
        with _terminal_bars() as progress:
            yield progress
    else:
        yield _PlainLines()


@contextmanager
def _terminal_bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bars:
        # Importing what computes takes seconds too, and reports nothing.
        tasks: dict[str, TaskID] = {_START: bars.add_task(_START, total=None)}

        def report(stage: str, fraction: float) -> None:
            if _START in tasks:
                bars.remove_task(tasks.pop(_START))
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1.0)
            bars.update(tasks[stage], completed=fraction)
            if fraction >= 1.0:
                bars.remove_task(tasks.pop(stage))

        yield report


class _PlainLines:
    def __init__(self) -> None:
        self._started_s: dict[str, float] = {}

    def __call__(self, stage: str, fraction: float) -> None:
        started_s = self._started_s.setdefault(stage, time.monotonic())
        if fraction < 1.0:
            return
        del self._started_s[stage]
        wait_s = time.monotonic() - started_s
        if wait_s >= _NOTED_WAIT_S:
            print(f"{stage}: {wait_s:.1f} s", file=sys.stderr, flush=True)
