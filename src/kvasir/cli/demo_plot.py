"""The demo's picture: what a turn waits for, what memory is wasted, and how many answers run at once."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _RED, _ORANGE, _GREY = "#1f6fb2", "#c8452e", "#d99a2b", "#8a8f98"
_INK, _RULE = "#23272e", "#d9dce1"
_VARIANT_COLOURS = (_BLUE, _ORANGE, _RED)


def draw_demo(measurements: dict[str, Any], path: Path) -> None:
    """Write a PNG of the demo's measurements (see ``cli/demo.py`` for their form)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    style: dict[Any, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "text.color": _INK,
        "axes.edgecolor": _RULE,
        "axes.labelcolor": _INK,
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": _RULE,
        "grid.linewidth": 0.7,
        "axes.axisbelow": True,
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(1, 3, figsize=(15, 4.9), width_ratios=(1.25, 1, 1))
        _draw_turns(axes[0], measurements["chat"])
        _draw_waste(axes[1], measurements["load"])
        _draw_running(axes[2], measurements["load"])
        figure.tight_layout(rect=(0, 0, 1, 0.97), w_pad=2.5)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        plt.close(figure)


def _draw_turns(axes: "Axes", chat: dict[str, Any]) -> None:
    turns = [turn["turn"] for turn in chat["off"]]
    for name, colour in (("off", _GREY), ("on", _BLUE)):
        times_ms = [turn["ttft_s"] * 1000 for turn in chat[name]]
        label = f"prefix caching {name}: turn {turns[-1]} after {times_ms[-1]:,.0f} ms"
        axes.plot(turns, times_ms, color=colour, linewidth=2.2, marker="o", markersize=4.5, label=label)
    last = chat["off"][-1]
    axes.set_title("A chat that grows: time to first token")
    axes.set_xlabel(f"turn (turn {last['turn']} sends {last['num_prompt_tokens']:,} prompt tokens)")
    axes.set_ylabel("ms")
    axes.set_xticks(turns)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _legend_below(axes)


def _draw_waste(axes: "Axes", load: dict[str, Any]) -> None:
    for (name, variant), colour in zip(load["variants"].items(), _VARIANT_COLOURS, strict=True):
        times = [sample["time_s"] for sample in variant["samples"]]
        wasted = [100 * sample["wasted_fraction"] for sample in variant["samples"]]
        axes.plot(times, wasted, color=colour, linewidth=1.8, label=f"{name}: {100 * variant['wasted_fraction']:.1f} %")
    axes.set_title("Reserved but unused KV slots")
    axes.set_xlabel("seconds")
    axes.set_ylabel("% of reserved slots")
    axes.set_ylim(0, 105)
    axes.set_xlim(left=0)
    _legend_below(axes)


def _draw_running(axes: "Axes", load: dict[str, Any]) -> None:
    most = 0.0
    for (name, variant), colour in zip(load["variants"].items(), _VARIANT_COLOURS, strict=True):
        times = [sample["time_s"] for sample in variant["samples"]]
        running = [sample["num_running"] for sample in variant["samples"]]
        most = max(most, *running)
        speed = variant["output_tokens_per_s"]
        axes.step(times, running, where="post", color=colour, linewidth=1.8, label=f"{name}: {speed:.0f} tok/s")
    axes.set_title(f"Answers at once, {load['num_requests']} mixed requests")
    axes.set_xlabel("seconds")
    axes.set_ylabel("running sequences")
    axes.set_ylim(0, most * 1.1 + 1)
    axes.set_xlim(left=0)
    _legend_below(axes)


def _legend_below(axes: "Axes") -> None:
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=9)
