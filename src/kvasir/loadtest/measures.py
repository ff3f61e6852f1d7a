"""From records to the field's measures, with the names and definitions of ``vllm bench serve``.

TTFT: sending to the first chunk with output.  TPOT: (E2EL - TTFT) / (output tokens - 1), the first token left out;
requests with one output token have none.  ITL: all gaps between chunks with output, pooled over requests.  E2EL:
sending to the last chunk of a choice.  Percentiles interpolate linearly.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvasir.loadtest.record import CountedBy, Failure, Record
from kvasir.workload.latency import Distribution, Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMeasures:
    """Requests that were turn ``turn`` of their conversation."""

    turn: int
    num_requests: int
    mean_prompt_tokens: float
    mean_cached_tokens: float | None
    ttft_s: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    label: str
    count: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """``met``: requests that met each given objective, by name; ``num_good``: those that met all."""

    slo: Slo
    num_good: int
    met: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Of one load.  Latencies are in seconds, None when no request has one.  ``output_counted_by`` has more than one
    entry when the server gave usage for some answers only."""

    duration_s: float
    num_completed: int
    num_failed: int
    num_aborted: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int | None
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2el_s: Distribution | None
    connect_s: Distribution | None
    wait_s: Distribution | None
    peak_output_tokens_per_s: float
    max_in_flight: int
    max_in_flight_by_second: int
    num_chunks: int
    output_counted_by: dict[CountedBy, int]
    prompt_counted_by: dict[CountedBy, int]
    failures: tuple[FailureCount, ...]
    goodput: Goodput | None
    turns: tuple[TurnMeasures, ...]

    @property
    def request_throughput(self) -> float:
        return self._per_s(self.num_completed)

    @property
    def output_throughput(self) -> float:
        return self._per_s(self.num_output_tokens)

    @property
    def total_token_throughput(self) -> float:
        return self._per_s(self.num_prompt_tokens + self.num_output_tokens)

    @property
    def request_goodput(self) -> float | None:
        return None if self.goodput is None else self._per_s(self.goodput.num_good)

    @property
    def prefix_hit_rate(self) -> float | None:
        """Of the prompt tokens, as the answers' usage says; None when it does not."""
        if self.num_cached_tokens is None or self.num_prompt_tokens == 0:
            return None
        return self.num_cached_tokens / self.num_prompt_tokens

    @property
    def tokens_per_chunk(self) -> float | None:
        """Above 1 the server sends several tokens at once, and ITL is a time between chunks, not tokens."""
        return self.num_output_tokens / self.num_chunks if self.num_chunks else None

    def _per_s(self, amount: float) -> float:
        return amount / self.duration_s if self.duration_s > 0 else 0.0


def measure(loads: Sequence[tuple[Sequence[Record], float]], slo: Slo, percentiles: Sequence[float]) -> Measures:
    """``loads``: the records of each repetition and its duration; requests are pooled, durations added."""
    records = [record for load, _ in loads for record in load]
    good = [record for record in records if record.is_ok]
    timings = [record.timing for record in good]
    cached = [record.num_cached_tokens for record in good if record.num_cached_tokens is not None]

    def spread(values: Iterable[float | None]) -> Distribution | None:
        return Distribution.of((value for value in values if value is not None), percentiles)

    return Measures(
        duration_s=math.fsum(duration_s for _, duration_s in loads),
        num_completed=len(good),
        num_failed=sum(not record.is_ok and not record.is_aborted for record in records),
        num_aborted=sum(record.is_aborted for record in records),
        num_prompt_tokens=sum(record.num_prompt_tokens for record in good),
        num_output_tokens=sum(record.num_output_tokens for record in good),
        num_cached_tokens=sum(cached) if cached else None,
        ttft_s=spread(timing.ttft_s for timing in timings),
        tpot_s=spread(timing.tpot_s for timing in timings),
        itl_s=spread(gap for record in good for gap in record.itls_s),
        e2el_s=spread(timing.e2e_s for timing in timings),
        connect_s=spread(record.connect_s for record in good if record.connect_s > 0),
        wait_s=spread(record.sent_s - record.place.planned_s for record in records),
        peak_output_tokens_per_s=max((_peak_tokens_per_s(load) for load, _ in loads), default=0.0),
        max_in_flight=max((_max_in_flight(load) for load, _ in loads), default=0),
        max_in_flight_by_second=max((_max_in_flight_by_second(load) for load, _ in loads), default=0),
        num_chunks=sum(len(record.chunk_times_s) for record in good),
        output_counted_by=dict(Counter(record.output_counted_by for record in good)),
        prompt_counted_by=dict(Counter(record.prompt_counted_by for record in good)),
        failures=_failures(record.failure for record in records if not record.is_aborted),
        goodput=None if slo.is_empty else _goodput(good, slo),
        turns=_turns(good, percentiles),
    )


def _failures(failures: Iterable[Failure | None]) -> tuple[FailureCount, ...]:
    """Most frequent first, with the first message of each kind."""
    found: dict[str, list[str]] = {}
    for failure in failures:
        if failure is not None:
            found.setdefault(failure.label, []).append(failure.message)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return tuple(FailureCount(label=label, count=len(texts), example=texts[0]) for label, texts in ordered)


def _goodput(records: Sequence[Record], slo: Slo) -> Goodput:
    alone = {
        "ttft": Slo(ttft_s=slo.ttft_s),
        "tpot": Slo(tpot_s=slo.tpot_s),
        "e2el": Slo(e2e_s=slo.e2e_s),
    }
    timings = [record.timing for record in records]
    return Goodput(
        slo=slo,
        num_good=sum(slo.is_met_by(timing) for timing in timings),
        met={name: sum(one.is_met_by(timing) for timing in timings) for name, one in alone.items() if not one.is_empty},
    )


def _turns(records: Sequence[Record], percentiles: Sequence[float]) -> tuple[TurnMeasures, ...]:
    """Empty when every conversation has one turn."""
    by_turn: dict[int, list[Record]] = {}
    for record in records:
        by_turn.setdefault(record.place.turn, []).append(record)
    if len(by_turn) < 2:
        return ()
    measured = []
    for turn, group in sorted(by_turn.items()):
        ttft_s = Distribution.of((record.timing.ttft_s for record in group), percentiles)
        cached = [record.num_cached_tokens for record in group if record.num_cached_tokens is not None]
        assert ttft_s is not None  # no group is empty
        measured.append(
            TurnMeasures(
                turn=turn,
                num_requests=len(group),
                mean_prompt_tokens=sum(record.num_prompt_tokens for record in group) / len(group),
                mean_cached_tokens=sum(cached) / len(cached) if cached else None,
                ttft_s=ttft_s,
            )
        )
    return tuple(measured)


def tokens_by_second(records: Iterable[Record]) -> list[float]:
    """Output tokens that came in each second of the load; an answer's tokens are spread evenly over its chunks."""
    counts: Counter[int] = Counter()
    for record in records:
        if record.is_ok:
            per_chunk = record.num_output_tokens / len(record.chunk_times_s)
            for time_s in record.chunk_times_s:
                counts[int(time_s)] += per_chunk  # type: ignore[assignment]
    return [counts[second] for second in range(max(counts, default=-1) + 1)]


def in_flight(records: Iterable[Record]) -> list[tuple[float, int]]:
    """(seconds, requests in flight from then on), at every change."""
    changes: list[tuple[float, int]] = []
    for record in records:
        changes += [(record.sent_s, 1), (record.end_s, -1)]
    changes.sort()
    steps, count = [], 0
    for time_s, change in changes:
        count += change
        steps.append((time_s, count))
    return steps


def _peak_tokens_per_s(records: Sequence[Record]) -> float:
    return max(tokens_by_second(records), default=0.0)


def _max_in_flight(records: Sequence[Record]) -> int:
    return max((count for _, count in in_flight(records)), default=0)


def _max_in_flight_by_second(records: Sequence[Record]) -> int:
    """As ``vllm bench serve`` counts: requests that were in flight at any time of a second, so two that follow each
    other within it count as two."""
    seconds: Counter[int] = Counter()
    for record in records:
        if record.is_ok:
            seconds.update(range(int(record.sent_s), int(record.end_s) + 1))
    return max(seconds.values(), default=0)
