"""What a server says about itself while the load runs: its /metrics, in the words of the common servers."""

import asyncio
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from kvasir.loadtest.connection import ConnectionPool
from kvasir.loadtest.page import ask_page
from kvasir.loadtest.target import Target

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Gauge(Enum):
    """``value`` is the name in result files."""

    RUNNING = "running"
    WAITING = "waiting"
    KV_USAGE = "kv_usage"
    MEMORY_BYTES = "memory_bytes"
    PREFIX_QUERIES = "prefix_queries"
    PREFIX_HITS = "prefix_hits"
    PREEMPTIONS = "preemptions"


COUNTERS = frozenset({Gauge.PREFIX_QUERIES, Gauge.PREFIX_HITS, Gauge.PREEMPTIONS})
"""They only go up: what counts is by how much."""

_NAMES = {
    "vllm:num_requests_running": Gauge.RUNNING,
    "vllm:num_requests_waiting": Gauge.WAITING,
    "vllm:kv_cache_usage_perc": Gauge.KV_USAGE,
    "vllm:gpu_cache_usage_perc": Gauge.KV_USAGE,
    "vllm:prefix_cache_queries_total": Gauge.PREFIX_QUERIES,
    "vllm:prefix_cache_hits_total": Gauge.PREFIX_HITS,
    "vllm:num_preemptions_total": Gauge.PREEMPTIONS,
    "sglang:num_running_reqs": Gauge.RUNNING,
    "sglang:num_queue_reqs": Gauge.WAITING,
    "sglang:token_usage": Gauge.KV_USAGE,
    "llamacpp:requests_processing": Gauge.RUNNING,
    "llamacpp:requests_deferred": Gauge.WAITING,
    "llamacpp:kv_cache_usage_ratio": Gauge.KV_USAGE,
    "tgi_batch_current_size": Gauge.RUNNING,
    "tgi_queue_size": Gauge.WAITING,
    "process_resident_memory_bytes": Gauge.MEMORY_BYTES,
}
# Shares are averaged over the engines that a page lists; everything else is summed.
_SHARES = frozenset({Gauge.KV_USAGE})
# A short load gets a few looks too.
_FIRST_INTERVAL_S, _INTERVAL_GROWTH = 0.1, 0.1
_TIMEOUT_S = 5.0
_POOL_NAME, _POOL_LABEL = "vllm:cache_config_info", "num_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeSample:
    """One look at /metrics, ``time_s`` after the load began.  Only what the server offers is in ``values``."""

    time_s: float
    values: dict[Gauge, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGauges:
    """All looks, and the size of the KV pool where the server says it."""

    url: str
    samples: tuple[GaugeSample, ...] = ()
    kv_pool_bytes: int | None = None

    def series(self, gauge: Gauge) -> list[tuple[float, float]]:
        """(seconds, value); counters as the increase since the first look."""
        found = [(sample.time_s, sample.values[gauge]) for sample in self.samples if gauge in sample.values]
        if gauge in COUNTERS and found:
            first = found[0][1]
            return [(time_s, value - first) for time_s, value in found]
        return found

    def peak(self, gauge: Gauge) -> float | None:
        return max((value for _, value in self.series(gauge)), default=None)

    def mean(self, gauge: Gauge) -> float | None:
        series = self.series(gauge)
        return sum(value for _, value in series) / len(series) if series else None

    @property
    def prefix_hit_rate(self) -> float | None:
        """Of the tokens that were looked up during the load; None when none was, or the server does not say."""
        queries, hits = self.peak(Gauge.PREFIX_QUERIES), self.peak(Gauge.PREFIX_HITS)
        return hits / queries if queries and hits is not None else None


def read_gauges(page: str) -> dict[Gauge, float]:
    """From a page in Prometheus' text format."""
    found: dict[Gauge, dict[str, list[float]]] = {}
    for name, _, value in _samples(page):
        gauge = _NAMES.get(name)
        if gauge is not None:
            found.setdefault(gauge, {}).setdefault(name, []).append(value)
    values = {}
    for gauge, by_name in found.items():
        parts = next(iter(by_name.values()))  # a page may offer an old and a new name of one thing
        values[gauge] = sum(parts) / len(parts) if gauge in _SHARES else sum(parts)
    return values


def read_pool_bytes(page: str) -> int | None:
    for name, labels, _ in _samples(page):
        if name == _POOL_NAME and (text := dict(_LABEL.findall(labels)).get(_POOL_LABEL, "")).isdigit():
            return int(text)
    return None


def _samples(page: str) -> Iterator[tuple[str, str, float]]:
    for line in _interesting(page.splitlines()):
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            yield match[1], match[2] or "", float(match[3])
        except ValueError:
            continue


def _interesting(lines: Iterable[str]) -> Iterator[str]:
    """Histograms make most of a page; a cheap look keeps the reading off the load's own time."""
    for line in lines:
        name = line.partition("{")[0].partition(" ")[0]
        if name in _NAMES or name == _POOL_NAME:
            yield line


class GaugeWatch:
    """Looks at /metrics every ``interval_s``, more often at first, on a connection of its own, while used as a
    context."""

    def __init__(self, target: Target, interval_s: float) -> None:
        self._target = target
        self._interval_s = interval_s
        self._pool = ConnectionPool(target.address)
        self._samples: list[GaugeSample] = []
        self._pool_bytes: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._started_s = 0.0
        self.latest: dict[Gauge, float] = {}

    async def __aenter__(self) -> "GaugeWatch":
        self._started_s = time.perf_counter()
        self._task = asyncio.create_task(self._look_often())
        return self

    async def __aexit__(self, *_: object) -> None:
        """A last look, for what the counters have come to."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._samples:
            await self._look()
        self._pool.close()

    @property
    def gauges(self) -> ServerGauges | None:
        """None when the server offers none."""
        if not self._samples:
            return None
        return ServerGauges(
            url=f"{self._target.url}/metrics", samples=tuple(self._samples), kv_pool_bytes=self._pool_bytes
        )

    async def _look_often(self) -> None:
        while await self._look():
            elapsed_s = time.perf_counter() - self._started_s
            await asyncio.sleep(min(self._interval_s, _FIRST_INTERVAL_S + elapsed_s * _INTERVAL_GROWTH))

    async def _look(self) -> bool:
        """False when there is no such page, or nothing on it that we know."""
        now_s = time.perf_counter() - self._started_s
        status, page = await ask_page(self._pool, self._target.get("/metrics"), _TIMEOUT_S)
        values = read_gauges(page) if status == 200 else {}
        if values:
            self.latest = values
            self._samples.append(GaugeSample(time_s=now_s, values=values))
            self._pool_bytes = self._pool_bytes or read_pool_bytes(page)
        return bool(values or self._samples or status == 0)
