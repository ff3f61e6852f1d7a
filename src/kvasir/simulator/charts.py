"""The plots of a simulation."""

from collections.abc import Callable, Sequence

from kvasir.report import figures
from kvasir.report.figures import Axes
from kvasir.report.page import Figure
from kvasir.simulator.cache_replay import CacheReplay
from kvasir.simulator.capacity import Capacity
from kvasir.simulator.outcome import SimulationResult
from kvasir.simulator.over_time import over_time
from kvasir.simulator.report import SimulationReport
from kvasir.simulator.sweep import Axis, SweepPoint, shown
from kvasir.workload.latency import Slo

_GRID = 400
_WINDOW = 200
"""Requests over which the hit rate is averaged."""
_COLOURS = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.PURPLE, figures.RED, figures.GREY)


def latency_charts(result: SimulationResult, slo: Slo) -> list[Figure]:
    timings = [outcome.timing for outcome in result.outcomes]
    tpots = [tpot for timing in timings if (tpot := timing.tpot_s) is not None]
    named = (
        ("Time to first token", [timing.ttft_s for timing in timings], figures.BLUE, slo.ttft_s),
        ("Time per output token", tpots, figures.ORANGE, slo.tpot_s),
        ("End to end", [timing.e2e_s for timing in timings], figures.GREEN, slo.e2e_s),
    )
    drawn = []
    for name, values, colour, objective_s in named:
        if len(values) < 2:
            continue
        lines = [] if objective_s is None else [figures.upright(1000 * objective_s, "objective", figures.RED)]
        # A queue that grows gives latencies over decades; a marker on a logarithmic axis would need its logarithm.
        is_wide = not lines and max(values) > 30 * max(min(values), 1e-6)
        axes = Axes(title=f"{name}: share of requests within", x="ms", y="%", x_is_log=is_wide)
        drawn.append(
            Figure(
                spec=figures.figure(axes, [figures.cumulative(name, [1000 * value for value in values], colour)], lines)
            )
        )
    if len(result.gaps_us) > 1:
        drawn.append(_gap_chart(result))
    return drawn


def _gap_chart(result: SimulationResult) -> Figure:
    total = sum(result.gaps_us.values())
    times_ms, shares, seen = [], [], 0
    for gap_us, count in sorted(result.gaps_us.items()):
        seen += count
        times_ms.append(gap_us / 1000)
        shares.append(100 * seen / total)
    is_wide = times_ms[-1] > 30 * max(times_ms[0], 1e-3)
    axes = Axes(title="Gap between tokens: share of gaps within", x="ms", y="%", x_is_log=is_wide)
    return Figure(spec=figures.figure(axes, [figures.curve("gaps", times_ms, shares, figures.PURPLE, is_step=True)]))


def time_charts(result: SimulationResult) -> list[Figure]:
    """Blocks, sequences, hit rate and waiting over simulated time; instances are added up."""
    total = sum(instance.num_blocks for instance in result.instances)
    states = over_time(result, _GRID)
    grid = states.time_s
    used_share = [100 * value / total for value in states.used_blocks]
    kept_share = [100 * (a + b) / total for a, b in zip(states.used_blocks, states.cached_blocks, strict=True)]
    blocks = figures.figure(
        Axes(title="Blocks over time", x="s", y="% of all blocks"),
        [
            _filled(figures.curve("in use", grid, used_share, figures.BLUE, is_step=True)),
            figures.curve("in use or cached", grid, kept_share, figures.GREY, is_step=True),
        ],
    )
    queue = figures.figure(
        Axes(title="Sequences over time", x="s", y="sequences"),
        [
            figures.curve("running", grid, states.running, figures.BLUE, is_step=True),
            figures.curve("waiting", grid, states.waiting, figures.RED, is_step=True),
        ],
    )
    return [
        Figure(spec=blocks, caption=f"{total:,} blocks on {len(result.instances)} instance(s)."),
        Figure(spec=queue),
        *request_charts(result),
    ]


def request_charts(result: SimulationResult) -> list[Figure]:
    ordered = sorted(result.outcomes, key=lambda outcome: outcome.arrival_s)
    if len(ordered) < 2:
        return []
    arrivals = [outcome.arrival_s for outcome in ordered]
    waits = figures.figure(
        Axes(title="Time to first token by arrival", x="arrival, s", y="s"),
        [figures.points("requests", arrivals, [outcome.ttft_s for outcome in ordered], figures.BLUE)],
    )
    lengths = figures.figure(
        Axes(title="Time to first token by what had to be computed", x="prompt tokens not in the cache", y="s"),
        [
            figures.points(
                "requests",
                [outcome.num_prompt_tokens - outcome.num_cached_tokens for outcome in ordered],
                [outcome.ttft_s for outcome in ordered],
                figures.PURPLE,
            )
        ],
    )
    window = min(_WINDOW, max(1, len(ordered) // 4))
    centres, rates = [], []
    for start in range(0, len(ordered) - window + 1, max(1, window // 4)):
        part = ordered[start : start + window]
        centres.append(part[window // 2].arrival_s)
        rates.append(100 * sum(o.num_cached_tokens for o in part) / sum(o.num_prompt_tokens for o in part))
    hits = figures.figure(
        Axes(title=f"Hit rate, {window} requests at a time", x="arrival, s", y="% of prompt tokens"),
        [figures.curve("hit rate", centres, rates, figures.GREEN)],
    )
    return [Figure(spec=hits), Figure(spec=waits), Figure(spec=lengths)]


def instance_chart(result: SimulationResult) -> Figure:
    """Busy share of every instance, to see who does the work."""
    labels = [str(instance.instance_id) for instance in result.instances]
    busy = [100 * instance.busy_s / result.duration_s for instance in result.instances]
    bar = {
        "type": "bar",
        "name": "busy",
        "x": labels,
        "y": [round(b, 2) for b in busy],
        "marker": {"color": figures.BLUE},
    }
    axes = Axes(title="Time spent computing, by instance", x="instance", y="%")
    spec = figures.figure(axes, [bar])
    spec["layout"]["xaxis"]["type"] = "category"
    return Figure(spec=spec)


def _filled(trace: figures.Trace) -> figures.Trace:
    return trace | {"fill": "tozeroy", "fillcolor": "rgba(31,111,178,0.15)"}


_SWEPT: tuple[tuple[str, str, Callable[[SimulationReport], float | None]], ...] = (
    ("Hit rate", "% of prompt tokens", lambda r: 100 * r.hit_rate),
    ("Time to first token, median", "ms", lambda r: None if r.ttft is None else 1000 * r.ttft.median),
    ("Time to first token, p99", "ms", lambda r: None if r.ttft is None else 1000 * r.ttft.percentiles[99.0]),
    ("Time per output token, median", "ms", lambda r: None if r.tpot is None else 1000 * r.tpot.median),
    ("Output tokens", "tokens/s", lambda r: r.output_rate),
    ("Requests within objectives", "%", lambda r: None if r.slo.is_empty else 100 * r.good_fraction),
    ("Dollars per million output tokens", "$", lambda r: None if r.money is None else r.money.per_million_output),
)


def sweep_charts(axes: Sequence[Axis], points: Sequence[SweepPoint]) -> list[Figure]:
    """Along the first axis; a curve for every combination of the others."""
    first, others = axes[0], axes[1:]
    is_number = all(isinstance(value, int | float) for value in first.values)
    curves: dict[tuple[str, ...], list[SweepPoint]] = {}
    for point in points:
        if point.report is not None:
            curves.setdefault(tuple(shown(value) for value in point.values[1:]), []).append(point)
    drawn = []
    for title, unit, read in _SWEPT:
        traces = []
        for number, (labels, members) in enumerate(curves.items()):
            ys = [read(point.report) for point in members if point.report is not None]
            if any(y is None for y in ys):
                continue
            xs = [point.values[0] for point in members]
            name = ", ".join(f"{axis.name} {label}" for axis, label in zip(others, labels, strict=True)) or title
            colour = _COLOURS[number % len(_COLOURS)]
            numbers = xs if is_number else list(range(len(xs)))
            trace = figures.curve(name, numbers, [y for y in ys if y is not None], colour, has_marks=True)
            traces.append(trace if is_number else trace | {"x": [shown(x) for x in xs]})
        if traces:
            is_log = is_number and max(first.values) >= 16 * min(first.values)
            spec = figures.figure(Axes(title=title, x=first.name, y=unit, x_is_log=is_log), traces)
            if not is_number:
                spec["layout"]["xaxis"]["type"] = "category"
            drawn.append(Figure(spec=spec))
    return drawn


def capacity_chart(capacity: Capacity) -> Figure:
    rates = [probe.rate for probe in capacity.probes]
    good = [100 * probe.report.good_fraction for probe in capacity.probes]
    lines = [figures.level(100 * capacity.question.attainment, "asked for", figures.RED)]
    if capacity.rate:
        lines.append(figures.upright(capacity.rate, f"{capacity.rate:.3g} requests/s", figures.GREEN))
    axes = Axes(title="Requests within the objectives, by rate", x="requests/s", y="%")
    return Figure(spec=figures.figure(axes, [figures.curve("good", rates, good, figures.BLUE, has_marks=True)], lines))


def hit_curve_chart(runs: Sequence[CacheReplay], from_share: float) -> Figure:
    traces = []
    for number, policy in enumerate(dict.fromkeys(run.policy for run in runs if run.num_blocks is not None)):
        own = [
            (run.num_blocks, 100 * run.hit_rate(from_share)) for run in runs if run.policy is policy and run.num_blocks
        ]
        own.sort()
        traces.append(
            figures.curve(policy.value, [n for n, _ in own], [y for _, y in own], _COLOURS[number], has_marks=True)
        )
    unlimited = next((run for run in runs if run.num_blocks is None), None)
    lines = [] if unlimited is None else [figures.level(100 * unlimited.hit_rate(from_share), "unlimited cache")]
    axes = Axes(title="Hit rate by size of the cache", x="blocks", y="% of prompt tokens", x_is_log=True)
    return Figure(spec=figures.figure(axes, traces, lines), is_wide=True)
