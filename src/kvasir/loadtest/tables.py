"""What was found as rows of text, for the terminal and for reports alike."""

from collections.abc import Sequence
from typing import Any

from kvasir.engine.byte_size import format_bytes
from kvasir.loadtest.compare import Comparison, Difference
from kvasir.loadtest.gauges import Gauge
from kvasir.loadtest.measures import Measures
from kvasir.loadtest.result import BenchResult
from kvasir.loadtest.sweep import SweepPoint, Verdict
from kvasir.workload.latency import Distribution

Columns = Sequence[str]
"""Those that start with ">" are right-aligned."""
Rows = list[list[str]]

_SHOWN_MESSAGE = 110


def facts_rows(result: BenchResult) -> Rows:
    measures = result.measures
    rows = [
        ["requests", _requests_text(result)],
        ["time", f"{measures.duration_s:.1f} s, {measures.request_throughput:.2f} requests/s"],
        [
            "tokens",
            f"{measures.num_prompt_tokens:,} in, {measures.num_output_tokens:,} out (counted by {_counted(measures)})",
        ],
        [
            "throughput",
            f"{measures.output_throughput:,.1f} output tok/s (most in a second: "
            f"{measures.peak_output_tokens_per_s:,.0f}), {measures.total_token_throughput:,.1f} tok/s in and out",
        ],
        ["in flight", f"{measures.max_in_flight} at most"],
    ]
    if measures.goodput is not None:
        rows.append(["goodput", _goodput_text(measures)])
    if measures.prefix_hit_rate is not None:
        rows.append(["prompt tokens cached", f"{100 * measures.prefix_hit_rate:.1f} %"])
    rows += _server_rows(result)
    cost = max((run.cost for run in result.runs), key=lambda cost: cost.lag_p99_s)
    rows.append(
        [
            "this client",
            f"{100 * cost.cpu_share:.0f} % of a core, late by {_ms(cost.lag_p99_s)} ms at the 99th percentile",
        ]
    )
    return rows


def latency_table(measures: Measures) -> tuple[Columns, Rows]:
    named = {
        "TTFT  time to first token": measures.ttft_s,
        "TPOT  time per later token": measures.tpot_s,
        "ITL   between chunks": measures.itl_s,
        "E2EL  whole request": measures.e2el_s,
    }
    known = [distribution for distribution in named.values() if distribution is not None]
    qs = list(known[0].percentiles) if known else []
    columns = ("", ">mean", *(">median" if q == 50 else f">p{q:g}" for q in qs), ">max")
    rows = []
    for name, distribution in named.items():
        if distribution is None:
            rows.append([name, *["-"] * (len(qs) + 2)])
        else:
            values = (distribution.mean, *distribution.percentiles.values(), distribution.max)
            rows.append([name, *(_ms(value) for value in values)])
    return columns, rows


def turns_table(measures: Measures) -> tuple[Columns, Rows]:
    rows = [
        [
            str(turn.turn),
            str(turn.num_requests),
            f"{turn.mean_prompt_tokens:,.0f}",
            "-" if turn.mean_cached_tokens is None else f"{turn.mean_cached_tokens:,.0f}",
            _ms(turn.ttft_s.mean),
            _ms(turn.ttft_s.median),
            _ms(turn.ttft_s.max),
        ]
        for turn in measures.turns
    ]
    return (">turn", ">requests", ">prompt tokens", ">cached", ">TTFT mean, ms", ">median", ">max"), rows


def runs_table(result: BenchResult) -> tuple[Columns, Rows]:
    rows = [
        [
            run.point.label,
            f"{alone.num_completed}",
            f"{alone.output_throughput:,.1f}",
            _of(alone.ttft_s, "median"),
            _of(alone.tpot_s, "median"),
            _of(alone.e2el_s, "median"),
        ]
        for run, alone in zip(result.runs, result.per_run, strict=True)
    ]
    return ("", ">ok", ">output tok/s", ">TTFT median, ms", ">TPOT median, ms", ">E2EL median, ms"), rows


def failures_table(measures: Measures) -> tuple[Columns, Rows]:
    rows = [[str(one.count), one.label, one.example[:_SHOWN_MESSAGE]] for one in measures.failures]
    return (">count", "kind", "first message"), rows


def sweep_table(points: Sequence[SweepPoint], verdict: Verdict | None) -> tuple[Columns, Rows]:
    has_goodput = any(point.measures.goodput is not None for point in points)
    rows = []
    for point in points:
        measures = point.measures
        row = [
            point.label,
            f"{measures.num_completed}" + (f" ({measures.num_failed} failed)" if measures.num_failed else ""),
            f"{measures.output_throughput:,.1f}",
            f"{measures.request_throughput:.2f}",
            _of(measures.ttft_s, "median"),
            _of(measures.ttft_s, "p99"),
            _of(measures.tpot_s, "median"),
            _of(measures.tpot_s, "p99"),
            _of(measures.e2el_s, "mean"),
            _peak_kv(point.result),
        ]
        if has_goodput:
            row.append(f"{measures.request_goodput or 0.0:.2f}")
        rows.append([*row, _mark(point, verdict)])
    columns = [
        "",
        ">ok",
        ">output tok/s",
        ">req/s",
        ">TTFT med",
        ">p99",
        ">TPOT med",
        ">p99",
        ">E2EL mean",
        ">KV peak",
        *([">goodput req/s"] if has_goodput else []),
        "",
    ]
    return columns, rows


def comparison_table(comparison: Comparison) -> tuple[Columns, Rows]:
    rows = [
        [
            difference.key,
            _value(difference, difference.a),
            _value(difference, difference.b),
            f"{100 * difference.change:+.1f} %",
            _band_text(difference),
            difference.verdict.value,
        ]
        for difference in comparison.differences
    ]
    return ("measure", f">A: {comparison.a.name}", f">B: {comparison.b.name}", ">change", ">95 % band", "B is"), rows


def _requests_text(result: BenchResult) -> str:
    measures = result.measures
    parts = [f"{measures.num_completed} of {result.num_planned} ok"]
    for count, word in (
        (measures.num_failed, "failed"),
        (measures.num_aborted, "aborted"),
        (result.num_not_sent, "not sent"),
    ):
        if count:
            parts.append(f"{count} {word}")
    text = ", ".join(parts)
    return text if result.end_reason.is_orderly and not result.num_not_sent else f"{text} ({result.end_reason.value})"


def _goodput_text(measures: Measures) -> str:
    goodput = measures.goodput
    assert goodput is not None and measures.request_goodput is not None
    total = max(1, measures.num_completed)
    each = ", ".join(f"{name} met by {100 * count / total:.0f} %" for name, count in goodput.met.items())
    return f"{measures.request_goodput:.2f} requests/s within {goodput.slo} ({each})"


def _server_rows(result: BenchResult) -> Rows:
    gauges = [run.gauges for run in result.runs if run.gauges is not None]
    if not gauges:
        return []
    peaks = {
        gauge: max((peak for one in gauges if (peak := one.peak(gauge)) is not None), default=None) for gauge in Gauge
    }
    parts = []
    usage, memory = peaks[Gauge.KV_USAGE], peaks[Gauge.MEMORY_BYTES]
    if usage is not None:
        pool = gauges[0].kv_pool_bytes
        size = f" ({format_bytes(round(usage * pool))} of {format_bytes(pool)})" if pool else ""
        parts.append(f"KV {100 * usage:.0f} % at most{size}")
    if memory is not None:
        parts.append(f"memory {format_bytes(round(memory))}")
    for gauge, word in ((Gauge.RUNNING, "running"), (Gauge.WAITING, "waiting"), (Gauge.PREEMPTIONS, "preemptions")):
        if peaks[gauge] is not None:
            parts.append(f"{peaks[gauge]:.0f} {word}")
    return [["server's own /metrics", ", ".join(parts)]] if parts else []


def _counted(measures: Measures) -> str:
    counted = measures.output_counted_by
    if len(counted) == 1:
        return next(iter(counted)).value
    return ", ".join(f"{how.value} {count}" for how, count in counted.items()) or "nobody"


def _peak_kv(result: BenchResult) -> str:
    peaks = [run.gauges.peak(Gauge.KV_USAGE) for run in result.runs if run.gauges is not None]
    known = [peak for peak in peaks if peak is not None]
    return f"{100 * max(known):.0f} %" if known else "-"


def _mark(point: SweepPoint, verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    marks = [word for word, one in (("best", verdict.best), ("knee", verdict.knee)) if one is point]
    return ", ".join(marks)


def _of(distribution: Distribution | None, statistic: str) -> str:
    """A statistic by its name in result files, in ms."""
    if distribution is None:
        return "-"
    value: Any = distribution.to_json(1000.0).get(statistic)
    return "-" if value is None else _number(value)


def _ms(value_s: float) -> str:
    return _number(1000.0 * value_s)


def _number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _value(difference: Difference, value: float) -> str:
    return f"{_number(value)} ms" if difference.key.endswith("_ms") else f"{_number(value)} /s"


def _band_text(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return "-"
    return f"{100 * difference.low:+.1f} .. {100 * difference.high:+.1f} %"
