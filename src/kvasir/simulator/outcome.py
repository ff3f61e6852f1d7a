"""What became of every request of a simulation, and what every instance did."""

from collections import Counter
from dataclasses import dataclass, field

from kvasir.simulator.instance import Refusal
from kvasir.simulator.timeline import Timeline
from kvasir.workload.latency import RequestTiming


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """An answered request.  Times are seconds since it arrived, as its client would measure them."""

    request_id: str
    instance_id: int
    arrival_s: float
    queue_s: float
    ttft_s: float
    e2e_s: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_preemptions: int

    @property
    def timing(self) -> RequestTiming:
        return RequestTiming(self.ttft_s, self.e2e_s, self.num_output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTotals:
    """Counters of one instance.  ``num_blocks`` is summed over groups."""

    instance_id: int
    num_requests: int
    num_steps: int
    num_preemptions: int
    num_computed_tokens: int
    busy_s: float
    num_blocks: int
    timeline: Timeline


@dataclass(slots=True, kw_only=True)
class SimulationResult:
    """``outcomes`` in order of ending.  ``gaps_us`` counts the gaps between tokens by their length in whole
    microseconds: the duration of a step, once for each decode in it.  ``duration_s`` is from time 0 to the last end."""

    duration_s: float = 0.0
    outcomes: list[RequestOutcome] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    gaps_us: Counter[int] = field(default_factory=Counter)
    instances: list[InstanceTotals] = field(default_factory=list)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(outcome.num_prompt_tokens for outcome in self.outcomes)

    @property
    def num_cached_tokens(self) -> int:
        return sum(outcome.num_cached_tokens for outcome in self.outcomes)

    @property
    def num_output_tokens(self) -> int:
        return sum(outcome.num_output_tokens for outcome in self.outcomes)

    @property
    def num_preemptions(self) -> int:
        return sum(instance.num_preemptions for instance in self.instances)

    def hit_rate(self, from_share: float = 0.0) -> float:
        """Share of prompt tokens found in the cache when first scheduled, of the requests that arrived after the first
        ``from_share`` of them."""
        ordered = sorted(self.outcomes, key=lambda outcome: outcome.arrival_s)
        counted = ordered[int(len(ordered) * from_share) :]
        wanted = sum(outcome.num_prompt_tokens for outcome in counted)
        return sum(outcome.num_cached_tokens for outcome in counted) / wanted if wanted else 0.0
