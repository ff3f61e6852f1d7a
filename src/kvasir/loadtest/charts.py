"""The plots of a report, from records and measures."""

from collections.abc import Iterable, Sequence

from kvasir.loadtest.gauges import Gauge, ServerGauges
from kvasir.loadtest.load_test import RunData
from kvasir.loadtest.measures import in_flight, tokens_by_second
from kvasir.loadtest.record import Record
from kvasir.loadtest.sweep import Sweep, SweepPoint, Verdict
from kvasir.report import figures
from kvasir.report.figures import Axes, Trace
from kvasir.report.page import Figure
from kvasir.workload.latency import Distribution, Slo

_MAX_BARS = 400
"""Requests that a timeline shows: more would be a grey area."""


def latency_figures(records: Sequence[Record], slo: Slo) -> list[Figure]:
    """How each latency is distributed, with its objective."""
    good = [record for record in records if record.is_ok]
    timings = [record.timing for record in good]
    named: list[tuple[str, list[float], str, float | None]] = [
        ("TTFT", [timing.ttft_s for timing in timings], figures.BLUE, slo.ttft_s),
        ("TPOT", [t for timing in timings if (t := timing.tpot_s) is not None], figures.ORANGE, slo.tpot_s),
        ("ITL", [gap for record in good for gap in record.itls_s], figures.PURPLE, None),
        ("E2EL", [timing.e2e_s for timing in timings], figures.GREEN, slo.e2e_s),
    ]
    drawn = []
    for name, values, colour, objective_s in named:
        if len(values) < 2:
            continue
        lines = [] if objective_s is None else [figures.upright(1000 * objective_s, "objective", figures.RED)]
        axes = Axes(title=f"{name}: share of {_WHAT[name]} within", x="ms", y="%")
        trace = figures.cumulative(name, [1000 * value for value in values], colour)
        drawn.append(Figure(spec=figures.figure(axes, [trace], lines)))
    return drawn


_WHAT = {"TTFT": "requests", "TPOT": "requests", "ITL": "chunks", "E2EL": "requests"}


def timeline(run: RunData) -> Figure:
    """A bar for each request: waiting for the first output, then receiving it."""
    records = sorted(run.played.records, key=lambda record: record.sent_s)[:_MAX_BARS]
    firsts = [record.chunk_times_s[0] if record.chunk_times_s else record.end_s for record in records]
    waits = [first - record.sent_s for record, first in zip(records, firsts, strict=True)]
    flows = [record.end_s - first if record.is_ok else 0.0 for record, first in zip(records, firsts, strict=True)]
    lost = [0.0 if record.is_ok else record.end_s - first for record, first in zip(records, firsts, strict=True)]
    numbers = list(range(1, len(records) + 1))

    def bars(name: str, starts: Iterable[float], lengths: Iterable[float], colour: str) -> Trace:
        return {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": numbers,
            "base": [round(start, 4) for start in starts],
            "x": [round(length, 4) for length in lengths],
            "marker": {"color": colour, "line": {"width": 0}},
        }

    traces = [
        bars("until the first output", (record.sent_s for record in records), waits, "#b9cfe4"),
        bars("output", firsts, flows, figures.BLUE),
    ]
    if any(not record.is_ok for record in records):
        traces.append(bars("failed or cut off", firsts, lost, figures.RED))
    axes = Axes(title="Requests over time", x="seconds", y="request, in order of sending")
    spec = figures.figure(axes, traces)
    spec["layout"] |= {"barmode": "overlay", "bargap": 0.15}
    more = len(run.played.records) - len(records)
    return Figure(spec=spec, is_wide=True, caption=f"The first {_MAX_BARS}; {more} more are not shown." if more else "")


def over_time(run: RunData) -> list[Figure]:
    """Throughput, requests in flight, and single requests in the order they were sent."""
    records = run.played.records
    tokens = tokens_by_second(records)
    flight = in_flight(records)
    axes = Axes(title="Output and load", x="seconds", y="output tokens in a second", y2="requests in flight")
    rate = figures.curve(
        "output tok/s", [float(second) for second in range(len(tokens))], tokens, figures.BLUE, is_step=True
    )
    load = figures.curve(
        "in flight", [at for at, _ in flight], [float(count) for _, count in flight], figures.GREY, is_step=True
    )
    drawn = [Figure(spec=figures.figure(axes, [rate, figures.on_right(load)]))]
    good = [record for record in records if record.is_ok]
    if good:
        sent = [record.sent_s for record in good]
        axes = Axes(title="TTFT by time of sending", x="seconds", y="ms")
        trace = figures.points("TTFT", sent, [1000 * record.timing.ttft_s for record in good], figures.BLUE)
        drawn.append(Figure(spec=figures.figure(axes, [trace])))
        axes = Axes(title="TTFT by prompt length", x="prompt tokens", y="ms")
        lengths = [float(record.num_prompt_tokens) for record in good]
        trace = figures.points("TTFT", lengths, [1000 * record.timing.ttft_s for record in good], figures.BLUE)
        drawn.append(Figure(spec=figures.figure(axes, [trace])))
    return drawn


def by_turn(records: Sequence[Record]) -> Figure:
    turns = sorted({record.place.turn for record in records if record.is_ok})
    groups = [
        (
            f"{turn}",
            [1000 * record.timing.ttft_s for record in records if record.is_ok and record.place.turn == turn],
        )
        for turn in turns
    ]
    axes = Axes(title="TTFT by turn", x="turn", y="ms")
    return Figure(spec=figures.figure(axes, [figures.spread("TTFT", groups, figures.BLUE)]), is_wide=True)


def gauge_figures(gauges: ServerGauges) -> list[Figure]:
    """What the server said of itself; only what it offers."""
    drawn = []
    usage = gauges.series(Gauge.KV_USAGE)
    if usage:
        axes = Axes(title="KV cache in use (server's own figure)", x="seconds", y="% of the pool")
        trace = figures.curve("KV", [at for at, _ in usage], [100 * value for _, value in usage], figures.BLUE)
        drawn.append(Figure(spec=figures.figure(axes, [trace])))
    queue = [
        figures.curve(name, [at for at, _ in series], [value for _, value in series], colour, is_step=True)
        for name, gauge, colour in (
            ("running", Gauge.RUNNING, figures.BLUE),
            ("waiting", Gauge.WAITING, figures.RED),
            ("preemptions so far", Gauge.PREEMPTIONS, figures.ORANGE),
        )
        if (series := gauges.series(gauge))
    ]
    if queue:
        axes = Axes(title="Sequences (server's own figures)", x="seconds", y="count")
        drawn.append(Figure(spec=figures.figure(axes, queue)))
    memory = gauges.series(Gauge.MEMORY_BYTES)
    if memory:
        axes = Axes(title="Memory of the server's process", x="seconds", y="GiB")
        trace = figures.curve("memory", [at for at, _ in memory], [value / 2**30 for _, value in memory], figures.GREEN)
        drawn.append(Figure(spec=figures.figure(axes, [trace])))
    return drawn


def sweep_figures(sweep: Sweep, points: Sequence[SweepPoint], verdict: Verdict | None) -> list[Figure]:
    """Throughput against latency, and everything against the swept setting."""
    usable = [point for point in points if point.measures.num_completed]
    if not usable:
        return []
    values = [point.value for point in usable]
    output = [point.measures.output_throughput for point in usable]
    drawn = [_trade_off(usable, verdict)]
    x = f"{sweep.setting.value}" + ("" if sweep.setting.value == "concurrency" else ", requests/s")
    axes = Axes(
        title="Throughput", x=x, y="output tok/s", x_is_log=True, y2="good requests/s" if _has_slo(usable) else ""
    )
    traces = [figures.curve("output tok/s", values, output, figures.BLUE, has_marks=True)]
    if _has_slo(usable):
        good = [point.measures.request_goodput or 0.0 for point in usable]
        traces.append(figures.on_right(figures.curve("goodput", values, good, figures.GREEN, has_marks=True)))
    drawn.append(Figure(spec=_with_ticks(figures.figure(axes, traces), values)))
    for name, attribute in (("TTFT", "ttft_s"), ("TPOT", "tpot_s")):
        spreads = [(point.value, getattr(point.measures, attribute)) for point in usable]
        axes = Axes(title=name, x=x, y="ms", x_is_log=True)
        drawn.append(Figure(spec=_with_ticks(figures.figure(axes, _percentile_curves(spreads)), values)))
    return drawn


def _trade_off(points: Sequence[SweepPoint], verdict: Verdict | None) -> Figure:
    latencies = [point.measures.e2el_s for point in points]
    xs = [latency.mean if latency else 0.0 for latency in latencies]
    ys = [point.measures.output_throughput for point in points]
    trace = figures.curve("all points", xs, ys, figures.GREY, has_marks=True) | {
        "mode": "lines+markers+text",
        "text": [f"{point.value:g}" for point in points],
        "textposition": "bottom right",
    }
    traces = [trace]
    if verdict is not None:
        marked = [("knee", verdict.knee, figures.ORANGE, 13), ("best", verdict.best, figures.BLUE, 17)]
        for name, point, colour, size in marked:
            index = points.index(point)
            mark = figures.points(name, [xs[index]], [ys[index]], colour)
            traces.append(
                mark | {"marker": {"color": colour, "size": size, "symbol": "circle-open", "line": {"width": 3}}}
            )
    axes = Axes(title="What output costs in latency", x="mean latency of a request, seconds", y="output tok/s")
    return Figure(spec=figures.figure(axes, traces), caption="Up and to the left is better.")


def _percentile_curves(spreads: Sequence[tuple[float, Distribution | None]]) -> list[Trace]:
    known = [(value, spread) for value, spread in spreads if spread is not None]
    if not known:
        return []
    colours = (figures.BLUE, figures.PURPLE, figures.ORANGE, figures.RED)
    return [
        figures.curve(
            "median" if q == 50 else f"p{q:g}",
            [value for value, _ in known],
            [1000 * spread.percentiles[q] for _, spread in known],
            colours[index % len(colours)],
            has_marks=True,
        )
        for index, q in enumerate(known[0][1].percentiles)
    ]


def _with_ticks(spec: dict, values: Sequence[float]) -> dict:
    """The values that were tried, not powers of ten."""
    spec["layout"]["xaxis"] |= {"tickvals": list(values), "ticktext": [f"{value:g}" for value in values]}
    return spec


def _has_slo(points: Sequence[SweepPoint]) -> bool:
    return any(point.measures.goodput is not None for point in points)
