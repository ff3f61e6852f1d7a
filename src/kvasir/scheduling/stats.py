"""What the scheduler counted since it started; counters never go back."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class SchedulerStats:
    """``num_prefix_queries`` / ``num_prefix_hits`` count prompt tokens looked up and found, once per first scheduling
    of a request (and again when a preempted sequence comes back)."""

    num_steps: int = 0
    num_preemptions: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_admitted: int = 0
    num_aborted: int = 0
