"""One picture of all programs: a panel a figure, a bar a program, the best peer marked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from side_by_side.contenders import contenders
from side_by_side.figures import median_of, rounds_of
from side_by_side.records import Record

_PANELS = (
    ("W1", "tpot_s", "W1: ms per output token", 1e3, False),
    ("W1", "ttft_s", "W1: ms to first token", 1e3, False),
    ("W2-4096", "ttft_s", "W2, 4,096: s to first token", 1.0, False),
    ("W2-7500", "ttft_s", "W2, 7,500: s to first token", 1.0, False),
    ("W2-4096", "tpot_s", "W2, 4,096: ms per output token", 1e3, False),
    ("W2-7500", "tpot_s", "W2, 7,500: ms per output token", 1e3, False),
    ("W3", "output_tokens_per_s", "W3: output tokens/s", 1.0, True),
    ("W4", "ttft_later_s", "W4: ms to first token, 2 to 16", 1e3, False),
    ("W5", "ttft_turn_15_s", "W5: ms to first token, turn 15", 1e3, False),
    ("W6", "output_tokens_per_s", "W6: output tokens/s", 1.0, True),
    ("W7", "decode_tokens_per_s", "W7: decode tokens/s", 1.0, True),
)
"""Workload, figure, title, factor, whether more is better."""
_OURS, _THEIRS, _BEST = "#1f5fa8", "#c9c9c9", "#e08a1e"


def draw(done: Sequence[Record], names: Sequence[str], path: Path) -> None:
    """Needs matplotlib; without it, no picture and a line that says so."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    columns = 4
    figure, axes = plt.subplots(3, columns, figsize=(19, 11))
    cells: list[Any] = list(axes.flat)
    for cell, panel in zip(cells, _PANELS, strict=False):
        _panel(cell, done, names, panel)
    _memory(cells[len(_PANELS)], done, names)
    figure.suptitle("Kvasir beside its peers, one model, same prompts, medians (blue: Kvasir, orange: best peer)")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _panel(cell: Any, done: Sequence[Record], names: Sequence[str], panel: tuple[str, str, str, float, bool]) -> None:
    workload, figure, title, factor, more_is_better = panel
    values = {name: median_of(rounds, figure) * factor for name in names if (rounds := rounds_of(done, workload, name))}
    _bars(cell, values, f"{title} ({'more' if more_is_better else 'less'} is better)", more_is_better=more_is_better)


def _memory(cell: Any, done: Sequence[Record], names: Sequence[str]) -> None:
    values = {
        name: max(record.peak_bytes for record in rounds) / 2**30
        for name in names
        if (rounds := rounds_of(done, "W6", name))
    }
    _bars(cell, values, "W6: peak memory, GiB (less is better)", more_is_better=False)


def _bars(cell: Any, values: dict[str, float], title: str, *, more_is_better: bool) -> None:
    if not values:
        cell.set_visible(False)
        return
    cell.set_title(title, fontsize=10)
    peers = [name for name in values if not contenders()[name].is_kvasir]
    best = (max if more_is_better else min)(peers, key=lambda name: values[name]) if peers else None
    colours = [_OURS if contenders()[name].is_kvasir else _BEST if name == best else _THEIRS for name in values]
    places = range(len(values))
    cell.barh(places, list(values.values()), color=colours)
    cell.set_yticks(places, list(values), fontsize=8)
    cell.invert_yaxis()
    for place, value in zip(places, values.values(), strict=True):
        cell.text(value, place, f" {value:.3g}", va="center", fontsize=8)
    cell.margins(x=0.15)
    for side in ("top", "right"):
        cell.spines[side].set_visible(False)
