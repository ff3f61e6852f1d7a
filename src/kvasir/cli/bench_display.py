"""A running load on the terminal: one line that moves, or a line now and then where nothing can move."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from kvasir.loadtest.client import Tally
from kvasir.loadtest.gauges import Gauge
from kvasir.loadtest.load_test import LiveView
from kvasir.workload.latency import percentile

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_PLAIN_EVERY_S = 10.0
_RATE_OVER_S = 3.0
_ROOM_FOR_A_BAR = 120


class Display(Protocol):
    """Is a ``core.progress.Progress`` for what comes before the load, and watches the load."""

    def __call__(self, stage: str, fraction: float) -> None: ...

    def watch(self, view: LiveView) -> None: ...


@contextmanager
def live_display() -> Iterator[Display]:
    """On stderr, so that stdout stays clean for results."""
    if not sys.stderr.isatty():
        yield _PlainDisplay()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True)
    label, facts = "{task.description}", "{task.fields[facts]}"
    columns = (TextColumn(label), BarColumn(bar_width=20), TextColumn(facts))
    if console.width < _ROOM_FOR_A_BAR:
        columns = (TextColumn(f"{label}  {facts}"),)
    # Drawn only when told: a refresh thread would take the time of the loop that measures.
    bars = RichProgress(*columns, console=console, transient=True, auto_refresh=False)
    with bars:
        yield _TerminalDisplay(bars)


class _Rate:
    """Chunks a second over the last few seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def update(self, elapsed_s: float, num_chunks: int) -> float:
        if self._seen and num_chunks < self._seen[-1][1]:
            self._seen.clear()  # another load began
        self._seen.append((elapsed_s, num_chunks))
        while len(self._seen) > 2 and self._seen[1][0] < elapsed_s - _RATE_OVER_S:
            self._seen.pop(0)
        (then_s, before), (now_s, after) = self._seen[0], self._seen[-1]
        return (after - before) / (now_s - then_s) if now_s > then_s else 0.0


class _TerminalDisplay:
    def __init__(self, bars: "RichProgress") -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._rate = _Rate()
        self._drawn_s = 0.0

    def __call__(self, stage: str, fraction: float) -> None:
        self._show(stage, fraction, "")
        if fraction >= 1.0:
            self._bars.remove_task(self._tasks.pop(stage))

    def watch(self, view: LiveView) -> None:
        rate = self._rate.update(view.elapsed_s, view.tally.num_chunks)
        self._drawn_s = 0.0
        self._show(view.label, view.tally.num_done / max(1, view.num_planned), facts_text(view, rate))

    def _show(self, label: str, fraction: float, facts: str) -> None:
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=1.0, facts="")
        self._bars.update(self._tasks[label], completed=fraction, facts=facts)
        now_s = time.monotonic()
        if now_s - self._drawn_s >= 0.1:
            self._drawn_s = now_s
            self._bars.refresh()


class _PlainDisplay:
    def __init__(self) -> None:
        self._rate = _Rate()
        self._noted_s = time.monotonic()

    def __call__(self, stage: str, fraction: float) -> None:
        """Making prompts and warming up are not worth a line."""

    def watch(self, view: LiveView) -> None:
        rate = self._rate.update(view.elapsed_s, view.tally.num_chunks)
        now_s = time.monotonic()
        if view.elapsed_s >= 1.0 and now_s - self._noted_s >= _PLAIN_EVERY_S:
            self._noted_s = now_s
            print(f"{view.label}: {facts_text(view, rate)}", file=sys.stderr, flush=True)


def facts_text(view: LiveView, chunks_per_s: float) -> str:
    """Most important first; what is unknown is left out."""
    tally = view.tally
    facts = [f"{tally.num_done}/{view.num_planned}", f"{view.elapsed_s:.0f} s"]
    if tally.num_failed:
        worst = max(tally.failures, key=lambda label: tally.failures[label])
        facts.append(f"{tally.num_failed} failed ({worst})")
    facts += [f"{tally.num_running} running", f"{chunks_per_s:.0f} tok/s", *_recent(tally)]
    usage = view.gauges.get(Gauge.KV_USAGE)
    if usage is not None:
        facts.append(f"KV {100 * usage:.0f} %")
    waiting = view.gauges.get(Gauge.WAITING)
    if waiting:
        facts.append(f"{waiting:.0f} queued")
    return "  ".join(facts)


def _recent(tally: Tally) -> list[str]:
    named = (("TTFT", tally.recent_ttfts_s), ("TPOT", tally.recent_tpots_s))
    return [f"{name} {1000 * percentile(sorted(values), 50):.0f} ms" for name, values in named if values]
