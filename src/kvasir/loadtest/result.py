"""The result of a test as JSON: the keys of ``vllm bench serve``, and ours beside them; written whatever happened."""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kvasir.core.errors import KvasirError
from kvasir.loadtest.gauges import Gauge, ServerGauges
from kvasir.loadtest.load_test import LoadTest, RunData
from kvasir.loadtest.measures import Measures, measure
from kvasir.loadtest.record import CountedBy, Record
from kvasir.loadtest.runner import EndReason
from kvasir.loadtest.settings import LoadTestSettings
from kvasir.workload.latency import Distribution

MARK = "kvasir_bench"
VERSION = 1
DEFINITIONS = {
    "ttft": "request sent -> first chunk with output",
    "tpot": "(e2el - ttft) / (output tokens - 1): the first token is left out; none for a single token",
    "itl": "gaps between chunks with output, pooled over all requests",
    "e2el": "request sent -> last chunk of a choice",
    "goodput": "requests per second that met every objective",
}


class ResultError(KvasirError):
    """A result file that cannot be written, or read as one."""

    code = "invalid_bench_result"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One point of a test, measured over its repetitions, and each of them alone."""

    runs: tuple[RunData, ...]
    measures: Measures
    per_run: tuple[Measures, ...]

    @classmethod
    def of(cls, runs: Sequence[RunData], settings: LoadTestSettings) -> "BenchResult":
        slo, percentiles = settings.measure.slo, settings.measure.percentiles
        loads = [(run.played.records, run.played.duration_s) for run in runs]
        return cls(
            runs=tuple(runs),
            measures=measure(loads, slo, percentiles),
            per_run=tuple(measure([load], slo, percentiles) for load in loads),
        )

    @property
    def records(self) -> list[Record]:
        return [record for run in self.runs for record in run.played.records]

    @property
    def num_planned(self) -> int:
        return sum(run.played.num_planned for run in self.runs)

    @property
    def num_not_sent(self) -> int:
        return self.num_planned - len(self.records)

    @property
    def end_reason(self) -> EndReason:
        """The first that was not orderly, else the last."""
        reasons = [run.played.end_reason for run in self.runs]
        return next((reason for reason in reasons if not reason.is_orderly), reasons[-1])


def summary_json(result: BenchResult, test: LoadTest) -> dict[str, Any]:
    """Everything but the lists with an entry for every request."""
    measures, run = result.measures, result.runs[0]
    settings = test.settings
    return {
        MARK: VERSION,
        "date": datetime.fromtimestamp(run.played.started_at).strftime("%Y%m%d-%H%M%S"),
        "backend": settings.endpoint.target.api.value,
        "base_url": settings.endpoint.target.url,
        "endpoint": f"/v1{settings.endpoint.target.api.route}",
        "model_id": test.preflight.model.name,
        "tokenizer_id": None,
        "num_prompts": result.num_planned,
        **_pace_json(run),
        "end_reason": result.end_reason.value,
        "is_complete": result.end_reason.is_orderly and measures.num_failed == 0,
        "workload": {"name": run.workload_name, "num_sessions": run.num_sessions, "num_left_out": run.num_left_out}
        | run.workload,
        "seed": settings.load.seed,
        "num_warmups": settings.load.num_warmups,
        **measures_json(measures, result.num_not_sent),
        "definitions": DEFINITIONS,
        "client": _client_json(result.runs),
        "server": [_gauges_json(one.gauges) for one in result.runs if one.gauges is not None],
        "runs": [
            {"label": one.point.label, "seed": one.point.seed} | measures_json(alone, 0, is_short=True)
            for one, alone in zip(result.runs, result.per_run, strict=True)
        ],
    }


def detail_json(records: Sequence[Record], num_by_run: Sequence[int]) -> dict[str, Any]:
    """Lists with an entry for every request that was sent, in the order of their ends.  ``ttfts`` of failures are 0, as
    in ``vllm bench serve``; ``run_numbers`` says which repetition a request was of."""
    return {
        "input_lens": [record.num_prompt_tokens for record in records],
        "output_lens": [record.num_output_tokens if record.is_ok else 0 for record in records],
        "ttfts": [_seconds(record.ttft_s or 0.0) for record in records],
        "itls": [[_seconds(gap) for gap in record.itls_s] for record in records],
        "e2els": [_seconds(record.end_s - record.sent_s) for record in records],
        "start_times": [_seconds(record.sent_s) for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [f"{f.label}: {f.message}" if (f := record.failure) else "" for record in records],
        "session_numbers": [record.place.session for record in records],
        "turn_numbers": [record.place.turn for record in records],
        "cached_lens": [record.num_cached_tokens for record in records],
        "run_numbers": [number for number, count in enumerate(num_by_run) for _ in range(count)],
    }


def result_json(result: BenchResult, test: LoadTest) -> dict[str, Any]:
    counts = [len(run.played.records) for run in result.runs]
    return summary_json(result, test) | detail_json(result.records, counts)


def measures_json(measures: Measures, num_not_sent: int, *, is_short: bool = False) -> dict[str, Any]:
    """``is_short``: counts, rates and latencies only."""
    latencies = {"ttft": measures.ttft_s, "tpot": measures.tpot_s, "itl": measures.itl_s, "e2el": measures.e2el_s}
    values: dict[str, Any] = {
        "duration": measures.duration_s,
        "completed": measures.num_completed,
        "failed": measures.num_failed,
        "aborted": measures.num_aborted,
        "not_sent": num_not_sent,
        "total_input_tokens": measures.num_prompt_tokens,
        "total_output_tokens": measures.num_output_tokens,
        "request_throughput": measures.request_throughput,
        "request_goodput": measures.request_goodput,
        "output_throughput": measures.output_throughput,
        "total_token_throughput": measures.total_token_throughput,
        "max_output_tokens_per_s": measures.peak_output_tokens_per_s,
        "max_concurrent_requests": measures.max_in_flight_by_second,
        "max_in_flight": measures.max_in_flight,
    }
    for name, distribution in latencies.items():
        values |= _latency_json(name, distribution)
    if is_short:
        return values
    return values | {
        "goodput": _goodput_json(measures),
        "total_cached_tokens": measures.num_cached_tokens,
        "prefix_hit_rate": measures.prefix_hit_rate,
        "output_tokens_counted_by": _counted_json(measures.output_counted_by),
        "input_tokens_counted_by": _counted_json(measures.prompt_counted_by),
        "tokens_per_chunk": measures.tokens_per_chunk,
        "connect": _plain_ms(measures.connect_s),
        "send_delay": _plain_ms(measures.wait_s),
        "failures": [
            {"kind": failure.label, "count": failure.count, "example": failure.example} for failure in measures.failures
        ],
        "turns": [
            {
                "turn": turn.turn,
                "num_requests": turn.num_requests,
                "mean_input_tokens": turn.mean_prompt_tokens,
                "mean_cached_tokens": turn.mean_cached_tokens,
                **_latency_json("ttft", turn.ttft_s),
            }
            for turn in measures.turns
        ],
    }


def _pace_json(run: RunData) -> dict[str, Any]:
    arrivals = run.point.arrivals
    values: dict[str, Any] = {"max_concurrency": run.point.max_concurrency}
    if arrivals is None:
        return values | {"request_rate": "trace", "burstiness": None}
    values |= {
        "request_rate": "inf" if arrivals.rate == float("inf") else arrivals.rate,
        "burstiness": arrivals.burstiness,
    }
    if arrivals.end_rate is not None:
        values |= {
            "ramp_up_strategy": arrivals.ramp.value,
            "ramp_up_start_rps": arrivals.rate,
            "ramp_up_end_rps": arrivals.end_rate,
        }
    return values


def _latency_json(name: str, distribution: Distribution | None) -> dict[str, float | None]:
    """``mean_ttft_ms`` and so on; None when no request has this latency."""
    if distribution is None:
        return {f"{statistic}_{name}_ms": None for statistic in ("mean", "median", "std")}
    values = distribution.to_json(1000.0)
    return {f"{statistic}_{name}_ms": value for statistic, value in values.items()}


def _plain_ms(distribution: Distribution | None) -> dict[str, float] | None:
    if distribution is None:
        return None
    return {f"{statistic}_ms": value for statistic, value in distribution.to_json(1000.0).items()}


def _goodput_json(measures: Measures) -> dict[str, Any] | None:
    goodput = measures.goodput
    if goodput is None:
        return None
    return {"objectives_ms": str(goodput.slo), "good_requests": goodput.num_good, "met": goodput.met}


def _counted_json(counted: dict[CountedBy, int]) -> str | dict[str, int] | None:
    """One word when all answers were counted alike, else how many each way."""
    if len(counted) == 1:
        return next(iter(counted)).value
    return {how.value: count for how, count in counted.items()} or None


def _client_json(runs: Sequence[RunData]) -> dict[str, float]:
    """The worst of the repetitions."""
    return {
        "cpu_share": max(run.cost.cpu_share for run in runs),
        "loop_lag_p50_ms": 1000 * max(run.cost.lag_p50_s for run in runs),
        "loop_lag_p99_ms": 1000 * max(run.cost.lag_p99_s for run in runs),
        "loop_lag_max_ms": 1000 * max(run.cost.lag_max_s for run in runs),
    }


def _gauges_json(gauges: ServerGauges) -> dict[str, Any]:
    peak_usage = gauges.peak(Gauge.KV_USAGE)
    pool_bytes = gauges.kv_pool_bytes
    return {
        "url": gauges.url,
        "peak_kv_usage": peak_usage,
        "mean_kv_usage": gauges.mean(Gauge.KV_USAGE),
        "kv_pool_bytes": pool_bytes,
        "peak_kv_bytes": None if pool_bytes is None or peak_usage is None else round(peak_usage * pool_bytes),
        "peak_memory_bytes": gauges.peak(Gauge.MEMORY_BYTES),
        "peak_running": gauges.peak(Gauge.RUNNING),
        "peak_waiting": gauges.peak(Gauge.WAITING),
        "preemptions": gauges.peak(Gauge.PREEMPTIONS),
        "prefix_hit_rate": gauges.prefix_hit_rate,
        "samples": [
            {"time_s": _seconds(sample.time_s)} | {gauge.value: value for gauge, value in sample.values.items()}
            for sample in gauges.samples
        ],
    }


def _seconds(value: float) -> float:
    """Microseconds are the finest that a loop in Python can tell."""
    return round(value, 6)


def check_writable(path: Path) -> None:
    """Raises ``ResultError`` now, rather than after the load."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ResultError(f"The result cannot be written to {path}: {error.strerror or error}.") from error


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Whole or not at all.  Raises ``ResultError``."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise ResultError(f"The result cannot be written to {path}: {error.strerror or error}.") from error
