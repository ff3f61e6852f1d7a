"""What the engine knows about itself at one moment: gauges now, counters since the start."""

from dataclasses import dataclass

from kvasir.kv.usage import GroupUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Gauges first, then counters that never go back.

    ``num_waiting`` are requests (and preempted sequences) in the queue, ``num_running`` sequences with a seat.
    ``num_prefix_queries`` and ``num_prefix_hits`` count tokens looked up in and found by the prefix cache.
    ``num_prompt_tokens`` counts prompts as admitted; ``num_computed_tokens`` what the model really processed.
    ``num_evicted_tokens`` counts prompt tokens that every head gave up, ``num_evicted_blocks`` the blocks that came
    back for it over all groups.  ``step_s_total`` is time spent in steps.
    """

    num_running: int
    num_waiting: int
    groups: tuple[GroupUsage, ...]
    num_steps: int
    num_preemptions: int
    num_prefix_queries: int
    num_prefix_hits: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_computed_tokens: int
    num_admitted: int
    num_aborted: int
    step_s_total: float
    num_evicted_tokens: int = 0
    num_evicted_blocks: int = 0

    @property
    def kv_cache_usage(self) -> float:
        """Share of the fullest group's blocks that are in use, 0 to 1."""
        return max((group.used_fraction for group in self.groups), default=0.0)
