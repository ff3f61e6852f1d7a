"""Which token positions a group keeps, as a function of the query's position only (law 2)."""

from dataclasses import dataclass
from enum import Enum


class RetentionKind(Enum):
    FULL = "full"
    SLIDING = "sliding"
    """The model's own window, token-granular: a query at position i sees (i - window, i]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The rule of one group.  ``window`` counts tokens and includes the query's own position; 0 for FULL."""

    kind: RetentionKind = RetentionKind.FULL
    window: int = 0

    def __post_init__(self) -> None:
        if (self.kind is RetentionKind.FULL) != (self.window == 0):
            raise ValueError(f"a window of {self.window} tokens does not go with {self.kind.value} retention")

    def first_visible(self, position: int) -> int:
        """The oldest position that the query at ``position`` sees."""
        if self.kind is RetentionKind.FULL:
            return 0
        return max(0, position - self.window + 1)

    def num_dead_blocks(self, next_position: int, block_size: int) -> int:
        """How many leading blocks no query at ``next_position`` or later can see.

        block:   0    1    2    3    4
               [dead][dead][ visible to next_position ...)
        """
        return self.first_visible(next_position) // block_size

    def max_blocks(self, num_tokens: int, chunk_tokens: int, block_size: int) -> int:
        """The most blocks one sequence of ``num_tokens`` ever holds when it computes ``chunk_tokens`` a step."""
        whole = -(-num_tokens // block_size)
        if self.kind is RetentionKind.FULL:
            return whole
        # The chunk [a, a + c) needs positions [a - window + 1, a + c); a bad alignment adds one block.
        span = self.window - 1 + chunk_tokens
        return min(whole, -(-span // block_size) + 1)


FULL = Retention()


def sliding(window: int) -> Retention:
    return Retention(kind=RetentionKind.SLIDING, window=window)
