"""What a simulation says: latencies, goodput, hits, memory, money; one value for the terminal, JSON and HTML."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from kvasir.simulator.outcome import SimulationResult
from kvasir.workload.latency import PERCENTILES, Distribution, Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """Dollars per million tokens of a run that kept its devices for ``duration_s``.

    ``per_million_output`` puts everything on the output tokens, ``per_million_computed_input`` everything on the prompt
    tokens that had to be computed, ``per_million_tokens`` shares it over all tokens, prompts that were found in the
    cache included: that is where the hit rate shows.
    """

    price_per_hour: float
    total: float
    per_million_output: float
    per_million_computed_input: float
    per_million_tokens: float

    @classmethod
    def of(cls, result: SimulationResult, price_per_hour: float) -> "Money":
        """``price_per_hour`` of all instances together."""
        total = price_per_hour * result.duration_s / 3600.0
        prompt, cached, output = result.num_prompt_tokens, result.num_cached_tokens, result.num_output_tokens
        return cls(
            price_per_hour=price_per_hour,
            total=total,
            per_million_output=_per_million(total, output),
            per_million_computed_input=_per_million(total, prompt - cached),
            per_million_tokens=_per_million(total, prompt + output),
        )


def _per_million(total: float, num_tokens: int) -> float:
    return total / num_tokens * 1e6 if num_tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """Distributions are in seconds, None when there was nothing to measure.  ``itl`` pools the gaps between tokens as
    the times of the steps that made them.  ``good_fraction`` is of all requests, refused ones included."""

    num_requests: int
    num_answered: int
    refused: dict[str, int]
    duration_s: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    hit_rate: float
    hit_rate_last_half: float
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None
    queue: Distribution | None
    slo: Slo
    num_good: int
    num_preemptions: int
    num_steps: int
    num_computed_tokens: int
    busy_fraction: float
    mean_running: float
    max_running: int
    num_blocks: int
    peak_used_blocks: int
    mean_used_blocks: float
    money: Money | None

    @property
    def request_rate(self) -> float:
        """Answers a second."""
        return self._per_second(self.num_answered)

    @property
    def output_rate(self) -> float:
        """Output tokens a second."""
        return self._per_second(self.num_output_tokens)

    @property
    def goodput(self) -> float:
        """Answers a second that met every objective."""
        return self._per_second(self.num_good)

    @property
    def good_fraction(self) -> float:
        return self.num_good / self.num_requests if self.num_requests else 0.0

    def _per_second(self, count: float) -> float:
        return count / self.duration_s if self.duration_s else 0.0

    def to_json(self) -> dict[str, Any]:
        """Names of ``vllm bench serve`` where it has one (times in ms); our own beside them."""
        values: dict[str, Any] = {
            "duration": self.duration_s,
            "completed": self.num_answered,
            "failed": self.num_requests - self.num_answered,
            "refused": self.refused,
            "total_input_tokens": self.num_prompt_tokens,
            "total_output_tokens": self.num_output_tokens,
            "request_throughput": self.request_rate,
            "request_goodput": self.goodput,
            "output_throughput": self.output_rate,
            "total_token_throughput": self._per_second(self.num_prompt_tokens + self.num_output_tokens),
        }
        named = {"ttft": self.ttft, "tpot": self.tpot, "itl": self.itl, "e2el": self.e2e, "queue": self.queue}
        for name, distribution in named.items():
            if distribution is not None:
                values |= {f"{key}_{name}_ms": value for key, value in distribution.to_json(1000.0).items()}
        values |= {
            "slo": str(self.slo),
            "good_fraction": self.good_fraction,
            "cached_tokens": self.num_cached_tokens,
            "hit_rate": self.hit_rate,
            "hit_rate_last_half": self.hit_rate_last_half,
            "preemptions": self.num_preemptions,
            "steps": self.num_steps,
            "computed_tokens": self.num_computed_tokens,
            "busy_fraction": self.busy_fraction,
            "mean_running": self.mean_running,
            "max_running": self.max_running,
            "num_blocks": self.num_blocks,
            "peak_used_blocks": self.peak_used_blocks,
            "mean_used_blocks": self.mean_used_blocks,
        }
        if self.money is not None:
            values["money"] = {
                "price_per_hour_usd": self.money.price_per_hour,
                "total_usd": self.money.total,
                "usd_per_million_output_tokens": self.money.per_million_output,
                "usd_per_million_computed_input_tokens": self.money.per_million_computed_input,
                "usd_per_million_tokens": self.money.per_million_tokens,
                "hit_rate_used": self.hit_rate,
            }
        return values


def make_report(
    result: SimulationResult, slo: Slo | None = None, price_per_hour: float | None = None
) -> SimulationReport:
    """``price_per_hour`` of all instances together; None: no money."""
    slo = slo or Slo()
    timings = [outcome.timing for outcome in result.outcomes]
    instances = result.instances
    span_s = result.duration_s * len(instances)
    return SimulationReport(
        num_requests=len(result.outcomes) + len(result.refused),
        num_answered=len(result.outcomes),
        refused=dict(Counter(refusal.code for refusal in result.refused)),
        duration_s=result.duration_s,
        num_prompt_tokens=result.num_prompt_tokens,
        num_cached_tokens=result.num_cached_tokens,
        num_output_tokens=result.num_output_tokens,
        hit_rate=result.hit_rate(),
        hit_rate_last_half=result.hit_rate(0.5),
        ttft=Distribution.of(timing.ttft_s for timing in timings),
        tpot=Distribution.of(tpot for timing in timings if (tpot := timing.tpot_s) is not None),
        itl=pooled(result.gaps_us),
        e2e=Distribution.of(timing.e2e_s for timing in timings),
        queue=Distribution.of(outcome.queue_s for outcome in result.outcomes),
        slo=slo,
        num_good=sum(slo.is_met_by(timing) for timing in timings),
        num_preemptions=result.num_preemptions,
        num_steps=sum(instance.num_steps for instance in instances),
        num_computed_tokens=sum(instance.num_computed_tokens for instance in instances),
        busy_fraction=sum(instance.busy_s for instance in instances) / span_s if span_s else 0.0,
        mean_running=sum(instance.timeline.mean_running() for instance in instances),
        max_running=max((instance.timeline.max_running for instance in instances), default=0),
        num_blocks=sum(instance.num_blocks for instance in instances),
        peak_used_blocks=sum(instance.timeline.peak_used for instance in instances),
        mean_used_blocks=sum(instance.timeline.mean_used() for instance in instances),
        money=None if price_per_hour is None else Money.of(result, price_per_hour),
    )


def pooled(counts_us: Counter[int]) -> Distribution | None:
    """In seconds, statistics of gaps that occur ``counts_us[microseconds]`` times.  Percentiles are of the nearest
    rank: with many equal values there is nothing between neighbours."""
    total = sum(counts_us.values())
    if not total:
        return None
    mean = sum(gap * times for gap, times in counts_us.items()) / total
    variance = sum(times * (gap - mean) ** 2 for gap, times in counts_us.items()) / total
    ordered = sorted(counts_us.items())
    wanted = {q: q / 100.0 * total for q in PERCENTILES}
    found: dict[float, float] = {}
    seen = 0
    for gap, times in ordered:
        seen += times
        for q, rank in wanted.items():
            if q not in found and seen >= rank:
                found[q] = gap / 1e6
    return Distribution(
        num_values=total,
        mean=mean / 1e6,
        std=variance**0.5 / 1e6,
        min=ordered[0][0] / 1e6,
        max=ordered[-1][0] / 1e6,
        percentiles=found,
    )
