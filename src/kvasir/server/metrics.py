"""What /metrics shows: vLLM's names where vLLM has the idea, ``kvasir:`` where it has not.

Counters only go up and gauges are of this moment; there is no ratio whose meaning depends on when it is read.  What the
engine counts comes with every step's report; what only this side can see (latencies, cancellations) is counted here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvasir.core.events import RequestFinishedEvent
from kvasir.core.sequence import FinishReason
from kvasir.server import buckets
from kvasir.server.engine_metrics import engine_metrics
from kvasir.server.messages import Capacity, StepReport

LABELS = ("model_name", "engine")


@dataclass(slots=True)
class RequestTimes:
    """When one request came and its choices last gained a token, on the monotonic clock."""

    arrival_s: float
    first_token_s: float | None = None
    last_token_s: dict[int, float] = field(default_factory=dict)


class ServerMetrics:
    """One registry of its own, so that two servers in one process do not meet."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}
        self._report: StepReport | None = None
        self._ttft = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", buckets.TTFT_S)
        self._itl = [
            self._histogram("vllm:inter_token_latency_seconds", "Between tokens of a choice.", buckets.TOKEN_S),
            self._histogram(
                "vllm:time_per_output_token_seconds", "vLLM's older name of inter_token_latency.", buckets.TOKEN_S
            ),
        ]
        self._tpot = self._histogram(
            "vllm:request_time_per_output_token_seconds", "A request's mean after its first token.", buckets.TOKEN_S
        )
        self._e2e = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to end.", buckets.REQUEST_S)
        self._queue = self._histogram(
            "vllm:request_queue_time_seconds", "Waiting for the first step.", buckets.REQUEST_S
        )
        self._prompt = self._histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", buckets.TOKENS)
        self._output = self._histogram(
            "vllm:request_generation_tokens", "Generated tokens of a request, all choices.", buckets.TOKENS
        )
        self._step = self._histogram("kvasir:step_duration_seconds", "One step of the engine.", buckets.STEP_S)
        self._success = self._counter("vllm:request_success", "Ended requests by reason.", ("finished_reason",))
        for reason in FinishReason:
            self._success.labels(**self._labels, finished_reason=reason.value)
        self._cancelled = self._counter("kvasir:requests_cancelled", "Requests whose client went away.")
        self._cancelled.labels(**self._labels)
        self._refused = self._counter("kvasir:requests_refused", "Requests answered with an error.", ("code",))
        self._heartbeats = self._counter("kvasir:engine_reports", "Steps and idle heartbeats heard of.")
        self.registry.register(_EngineCollector(self))

    @property
    def labels(self) -> dict[str, str]:
        return self._labels

    @property
    def last_report(self) -> StepReport | None:
        return self._report

    def exposition(self) -> bytes:
        """The page in Prometheus' text format."""
        return generate_latest(self.registry)

    def started(self, capacity: Capacity, effective_config: dict[str, str]) -> None:
        """Publish what was decided at start as labels of two constant gauges."""
        self._info("kvasir:effective_config_info", "The configuration in force.", effective_config)
        cache = {
            "block_size": str(capacity.block_size),
            "cache_dtype": effective_config["kv_cache_dtype"],
            "enable_prefix_caching": effective_config["enable_prefix_caching"],
            "num_gpu_blocks": str(sum(capacity.num_blocks)),
            "num_tokens": str(capacity.num_tokens),
            "num_bytes": str(capacity.num_bytes),
        }
        self._info("vllm:cache_config_info", "The KV cache (num_gpu_blocks is vLLM's word for all blocks).", cache)

    def stepped(self, report: StepReport) -> None:
        self._report = report
        self._heartbeats.labels(**self._labels).inc()
        if report.step_s is not None:
            self._step.observe(report.step_s)

    def generated(self, times: RequestTimes, index: int, num_tokens: int, now_s: float) -> None:
        """``num_tokens`` new tokens of choice ``index`` arrived at ``now_s``."""
        if num_tokens == 0:
            return
        if times.first_token_s is None:
            times.first_token_s = now_s
            self._ttft.observe(now_s - times.arrival_s)
        last_s = times.last_token_s.get(index)
        times.last_token_s[index] = now_s
        for histogram in self._itl if last_s is not None else ():
            for _ in range(num_tokens):
                histogram.observe((now_s - (last_s or now_s)) / num_tokens)

    def finished(self, times: RequestTimes, ended: RequestFinishedEvent, now_s: float, *, is_cancelled: bool) -> None:
        self._success.labels(**self._labels, finished_reason=ended.finish_reason.value).inc()
        self._e2e.observe(now_s - times.arrival_s)
        self._queue.observe(ended.queue_s)
        self._prompt.observe(ended.num_prompt_tokens)
        self._output.observe(ended.num_output_tokens)
        num_later = ended.num_output_tokens - len(times.last_token_s)
        if times.first_token_s is not None and num_later > 0:
            per_choice = num_later / len(times.last_token_s)
            self._tpot.observe((now_s - times.first_token_s) / per_choice)
        if is_cancelled:
            self._cancelled.labels(**self._labels).inc()

    def failed(self, *, is_cancelled: bool) -> None:
        """A request ended here because the engine did not answer."""
        self._success.labels(**self._labels, finished_reason=FinishReason.ERROR.value).inc()
        if is_cancelled:
            self._cancelled.labels(**self._labels).inc()

    def refused(self, code: str) -> None:
        self._refused.labels(**self._labels, code=code).inc()

    def _histogram(self, name: str, text: str, limits: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, LABELS, buckets=limits, registry=self.registry)
        return histogram.labels(**self._labels)

    def _counter(self, name: str, text: str, extra_labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, text, (*LABELS, *extra_labels), registry=self.registry)

    def _info(self, name: str, text: str, values: dict[str, str]) -> None:
        labels = self._labels | values
        Gauge(name, text, tuple(labels), registry=self.registry).labels(**labels).set(1)


class _EngineCollector(Collector):
    """The engine's own numbers as of its last report, made at scrape time."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        report = self._metrics.last_report
        if report is not None:
            yield from engine_metrics(report.stats, self._metrics.labels)
