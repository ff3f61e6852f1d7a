"""The plots of the HTML report, as plotly figures: memory, traffic, time, sequences, devices."""

from math import log10
from typing import Any

from kvasir.planner.context_table import ContextRow
from kvasir.planner.device_search import DeviceSet
from kvasir.planner.plan import Plan

_BLUE, _RED, _ORANGE, _GREEN, _GREY = "#1f6fb2", "#c8452e", "#d99a2b", "#3d8f5f", "#aab1ba"
_LINES = (_BLUE, _ORANGE, _RED, _GREEN)
_INK, _RULE = "#23272e", "#e3e6ea"
_GIB = 1 << 30
_HEIGHT = 340
_DEVICES_SHOWN = 16


def plan_figures(plan: Plan) -> list[Any]:
    figures = [_memory(plan), _sequences(plan), _traffic(plan), _time(plan)]
    if any(found.per_hour_usd is not None for found in plan.sets):
        figures.append(_devices(plan))
    if any(row.usd_per_million is not None for row in plan.rows):
        figures.append(_dollars(plan))
    return figures


def _figure(title: str, x: str, y: str) -> Any:
    from plotly.graph_objects import Figure

    figure = Figure()
    axis = {"gridcolor": _RULE, "linecolor": _RULE, "zeroline": False, "ticks": "outside", "tickcolor": _RULE}
    figure.update_layout(
        title={"text": title, "font": {"size": 15}, "x": 0.01, "xanchor": "left"},
        font={"family": "system-ui, Segoe UI, sans-serif", "size": 12, "color": _INK},
        height=_HEIGHT,
        margin={"l": 60, "r": 16, "t": 46, "b": 84},
        paper_bgcolor="white",
        plot_bgcolor="white",
        xaxis={**axis, "title": x},
        yaxis={**axis, "title": y},
        legend={"orientation": "h", "y": -0.24, "x": 0},
    )
    return figure


def _by_batch(plan: Plan) -> dict[int, list[ContextRow]]:
    found: dict[int, list[ContextRow]] = {}
    for row in plan.rows:
        found.setdefault(row.batch, []).append(row)
    return found


def _short(context: int) -> str:
    return f"{context // 1024}k" if context < 1 << 20 else f"{context / (1 << 20):g}M"


def _memory(plan: Plan) -> Any:
    """Weights and KV of the chosen instance at every context, against what its devices have."""
    from plotly.graph_objects import Bar

    batch, rows = max(_by_batch(plan).items())
    instance = plan.chosen.instance
    contexts = [_short(row.context) for row in rows]
    weights = [row.kv_bytes / row.kv_share - row.kv_bytes if row.kv_share else 0 for row in rows]
    figure = _figure(f"Memory at {batch} sequences of that length", "context, tokens", "GiB, all devices")
    figure.add_trace(Bar(x=contexts, y=[w / _GIB for w in weights], name="weights", marker_color=_GREY))
    figure.add_trace(Bar(x=contexts, y=[row.kv_bytes / _GIB for row in rows], name="KV cache", marker_color=_BLUE))
    usable = instance.budget.usable_bytes * (instance.num_devices if instance.form.tensor_parallel > 1 else 1) / _GIB
    figure.add_hline(
        y=usable, line={"color": _RED, "dash": "dash", "width": 1.5}, annotation_text=f"usable {usable:,.0f} GiB"
    )
    highest = max(row.kv_bytes / row.kv_share for row in rows if row.kv_share) / _GIB
    figure.update_layout(barmode="stack", yaxis_range=[0, 1.08 * max(usable, min(highest, 2.2 * usable))])
    return figure


def _sequences(plan: Plan) -> Any:
    from plotly.graph_objects import Bar

    capacity = plan.chosen.capacity
    bars = [
        ("contiguous", capacity.contiguous, _GREY),
        ("paged", capacity.expected, _BLUE),
        ("prefix shared", capacity.shared, _GREEN),
        ("most overhead", capacity.at_low, _ORANGE),
        ("to plan with", float(capacity.planned), _RED),
    ]
    if not plan.request.load.shared_prefix:
        del bars[2]
    figure = _figure("Sequences at once on one instance, at the stated lengths", "", "sequences")
    figure.add_trace(
        Bar(
            x=[name for name, _, _ in bars],
            y=[value for _, value, _ in bars],
            marker_color=[colour for _, _, colour in bars],
            text=[f"{value:,.0f}" if value >= 10 else f"{value:,.1f}" for _, value, _ in bars],
            textposition="outside",
            cliponaxis=False,
        )
    )
    figure.update_layout(showlegend=False, xaxis_tickangle=0, margin_b=50)
    return figure


def _traffic(plan: Plan) -> Any:
    from plotly.graph_objects import Scatter

    figure = _figure("Share of the KV cache in what a decode step reads", "context, tokens", "% of bytes read")
    for (batch, rows), colour in zip(_by_batch(plan).items(), _LINES, strict=False):
        figure.add_trace(
            Scatter(
                x=[_short(row.context) for row in rows],
                y=[100 * row.kv_read_share for row in rows],
                name=_at_once(batch),
                line={"color": colour, "width": 2.5},
            )
        )
    figure.add_hline(y=50, line={"color": _GREY, "dash": "dot", "width": 1})
    figure.update_layout(yaxis_range=[0, 100])
    return figure


def _time(plan: Plan) -> Any:
    from plotly.graph_objects import Scatter

    figure = _figure("Time per output token: expected, and the floor (dashed)", "context, tokens", "ms")
    for (batch, rows), colour in zip(_by_batch(plan).items(), _LINES, strict=False):
        contexts = [_short(row.context) for row in rows]
        expected = [1000 * row.expected_s for row in rows]
        floor = [1000 * row.floor_s for row in rows]
        figure.add_trace(Scatter(x=contexts, y=expected, name=_at_once(batch), line={"color": colour, "width": 2.5}))
        figure.add_trace(
            Scatter(x=contexts, y=floor, showlegend=False, line={"color": colour, "width": 1.5, "dash": "dash"})
        )
    figure.update_layout(yaxis_type="log")
    return figure


def _at_once(batch: int) -> str:
    return f"{batch} sequence{'s' if batch > 1 else ''}"


def _devices(plan: Plan) -> Any:
    """Cheapest first, from the top; how fast each is stands beside its bar."""
    from plotly.graph_objects import Bar

    priced = [found for found in plan.sets if found.per_hour_usd is not None][:_DEVICES_SHOWN][::-1]
    figure = _figure(f"Devices for {plan.request.load.users} users", "$ an hour (log)", "")
    figure.add_trace(
        Bar(
            orientation="h",
            x=[found.per_hour_usd for found in priced],
            y=[_named(found) for found in priced],
            marker_color=[_RED if found is plan.chosen else _BLUE for found in priced],
            text=[f"${found.per_hour_usd:,.2f}, {1000 * found.throughput.tpot_s:,.0f} ms" for found in priced],
            textposition="outside",
            textfont={"size": 10},
            cliponaxis=False,
        )
    )
    lowest = min(found.per_hour_usd or 0.0 for found in priced)
    highest = max(found.per_hour_usd or 0.0 for found in priced)
    figure.update_layout(
        showlegend=False,
        xaxis={"type": "log", "range": [log10(max(lowest, 1e-3) / 2), log10(max(highest, 1e-3) * 3)]},
        yaxis={"tickfont": {"size": 10}, "dtick": 1},
        margin={"l": 140, "b": 50},
    )
    return figure


def _named(found: DeviceSet) -> str:
    return f"{found.num_devices} x {found.instance.card.name}"


def _dollars(plan: Plan) -> Any:
    from plotly.graph_objects import Scatter

    figure = _figure("Dollars for a million output tokens", "context, tokens", "$ (log)")
    for (batch, rows), colour in zip(_by_batch(plan).items(), _LINES, strict=False):
        figure.add_trace(
            Scatter(
                x=[_short(row.context) for row in rows],
                y=[row.usd_per_million for row in rows],
                name=_at_once(batch),
                line={"color": colour, "width": 2.5},
            )
        )
    figure.update_layout(yaxis_type="log")
    return figure
