"""What the scheduler can be told, under vLLM's names."""

from dataclasses import dataclass
from enum import Enum

from kvasir.core.errors import ConfigError


class QueuePolicy(Enum):
    FCFS = "fcfs"
    PRIORITY = "priority"


class BatchingMode(Enum):
    CONTINUOUS = "continuous"
    STATIC = "static"
    """A batch is filled once and waits for its slowest member: the comparison, not a recommendation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """``max_num_batched_tokens`` bounds the tokens of one step, ``max_num_seqs`` the sequences running at once.

    ``long_prefill_token_threshold``: the most tokens one prefill takes of a step while others wait or run (0: no
    limit beyond the fair share).  ``max_waiting``: requests the queue holds before new ones are refused as overloaded.
    """

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 64
    policy: QueuePolicy = QueuePolicy.FCFS
    batching: BatchingMode = BatchingMode.CONTINUOUS
    long_prefill_token_threshold: int = 0
    max_waiting: int = 4096

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ConfigError(f"--max-num-seqs must be at least 1, got {self.max_num_seqs}.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is less than --max-num-seqs "
                f"{self.max_num_seqs}: a step could not give every running sequence its token."
            )
