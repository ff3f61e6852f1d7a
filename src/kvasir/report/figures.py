"""Plots as plotly.js takes them, all in one style; no plotting library is imported to make them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BLUE, RED, ORANGE, GREEN, PURPLE, GREY = "#1f6fb2", "#c8452e", "#d99a2b", "#3b8f5a", "#7a5ba6", "#8a8f98"
_INK, _RULE = "#23272e", "#e3e6eb"
_MAX_POINTS = 3000
"""More than a plot of this width can show."""

Trace = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """``x_is_log``: powers of two and the like; ``y2``: title of a second axis on the right, for traces that ask for it
    with ``on_right``."""

    title: str
    x: str
    y: str
    x_is_log: bool = False
    y_is_log: bool = False
    y2: str = ""


def figure(axes: Axes, traces: Sequence[Trace], lines: Sequence[Trace] = ()) -> dict[str, Any]:
    """``lines``: marks over the whole plot, from ``upright`` and ``level``."""
    layout: dict[str, Any] = {
        "title": {"text": axes.title, "x": 0, "xanchor": "left", "font": {"size": 15}},
        "font": {"family": "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif", "size": 12, "color": _INK},
        "margin": {"l": 62, "r": 62 if axes.y2 else 16, "t": 44, "b": 78 if len(traces) > 1 else 52},
        "showlegend": len(traces) > 1,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "legend": {"orientation": "h", "y": -0.26, "x": 0},
        "xaxis": _axis(axes.x, is_log=axes.x_is_log),
        "yaxis": _axis(axes.y, is_log=axes.y_is_log) | {"rangemode": "tozero"},
        "shapes": [line["shape"] for line in lines],
        "annotations": [line["annotation"] for line in lines],
    }
    if axes.y2:
        layout["yaxis2"] = _axis(axes.y2, is_log=False) | {
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "tickmode": "auto",
            "rangemode": "tozero",
        }
    return {"data": list(traces), "layout": layout}


def curve(
    name: str, xs: Sequence[float], ys: Sequence[float], colour: str, *, has_marks: bool = False, is_step: bool = False
) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers" if has_marks else "lines",
        "name": name,
        "x": _rounded(_thinned(xs)),
        "y": _rounded(_thinned(ys)),
        "line": {"color": colour, "width": 2, "shape": "hv" if is_step else "linear"},
        "marker": {"size": 7},
    }


def points(name: str, xs: Sequence[float], ys: Sequence[float], colour: str) -> Trace:
    return {
        "type": "scattergl" if len(xs) > 1000 else "scatter",
        "mode": "markers",
        "name": name,
        "x": _rounded(_thinned(xs)),
        "y": _rounded(_thinned(ys)),
        "marker": {"color": colour, "size": 6, "opacity": 0.65},
    }


def spread(name: str, groups: Sequence[tuple[str, Sequence[float]]], colour: str) -> Trace:
    """A box for each (label, values)."""
    return {
        "type": "box",
        "name": name,
        "x": [label for label, values in groups for _ in values],
        "y": _rounded([value for _, values in groups for value in values]),
        "marker": {"color": colour, "size": 4},
        "line": {"width": 1.5},
        "boxpoints": "outliers",
    }


def cumulative(name: str, values: Sequence[float], colour: str) -> Trace:
    """Which share of the values is at most x, in %."""
    ordered = sorted(values)
    return curve(name, ordered, [100 * (i + 1) / len(ordered) for i in range(len(ordered))], colour, is_step=True)


def on_right(trace: Trace) -> Trace:
    return trace | {"yaxis": "y2"}


def dashed(trace: Trace) -> Trace:
    return trace | {"line": trace["line"] | {"dash": "dot"}}


def upright(x: float, text: str, colour: str = GREY) -> Trace:
    """A vertical line at ``x``.  On a logarithmic axis give the logarithm's argument: plotly wants it for shapes."""
    return {
        "shape": {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": _dashes(colour)},
        "annotation": _note(text, colour) | {"x": x, "yref": "paper", "y": 1, "yanchor": "bottom"},
    }


def level(y: float, text: str, colour: str = GREY) -> Trace:
    """A horizontal line at ``y``."""
    return {
        "shape": {"type": "line", "y0": y, "y1": y, "xref": "paper", "x0": 0, "x1": 1, "line": _dashes(colour)},
        "annotation": _note(text, colour) | {"y": y, "xref": "paper", "x": 1, "xanchor": "right", "yanchor": "bottom"},
    }


def _dashes(colour: str) -> dict[str, Any]:
    return {"color": colour, "width": 1.5, "dash": "dash"}


def _note(text: str, colour: str) -> dict[str, Any]:
    return {"text": text, "showarrow": False, "font": {"color": colour, "size": 11}}


def _axis(title: str, *, is_log: bool) -> dict[str, Any]:
    return {
        "title": {"text": title},
        "type": "log" if is_log else "-",
        "gridcolor": _RULE,
        "zerolinecolor": _RULE,
        "linecolor": _RULE,
        "automargin": True,
    }


def _thinned(values: Sequence[float]) -> Sequence[float]:
    if len(values) <= _MAX_POINTS:
        return values
    stride = -(-len(values) // _MAX_POINTS)
    return [*values[::stride], values[-1]]


def _rounded(values: Sequence[float]) -> list[float]:
    """Five significant digits: a report of thousands of points stays small."""
    return [float(f"{value:.5g}") for value in values]
