"""Which token positions a group keeps, as a function of the query's position only (law 2)."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Self


class RetentionKind(Enum):
    FULL = "full"
    SLIDING = "sliding"
    """The model's own window, token-granular: a query at position i sees (i - window, i]."""
    WINDOW = "window"
    """Ours, block-granular: a query in block b sees the sinks and the blocks [b - window / block_size, b], causally."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The rule of one group.

    ``window`` in tokens: for SLIDING it includes the query's own position, for WINDOW it is what lies before the
    query's own block; 0 for FULL.  ``sinks`` are the first tokens of a sequence, which WINDOW keeps for good.
    ``block_size`` is that of the WINDOW rule, 0 until ``rounded`` has fitted sinks and window to it.

    WINDOW with 16 sinks and a window of 32 at block size 16; the query is in block 5:

        block:      0       1       2       3       4       5
                 [sinks] [dead]  [dead]  [window......]  [..query
    """

    kind: RetentionKind = RetentionKind.FULL
    window: int = 0
    sinks: int = 0
    block_size: int = 0

    def __post_init__(self) -> None:
        is_full, is_window = self.kind is RetentionKind.FULL, self.kind is RetentionKind.WINDOW
        if is_full != (self.window == 0) or self.window < 0:
            raise ValueError(f"a window of {self.window} tokens does not go with {self.kind.value} retention")
        if self.sinks < 0 or (not is_window and (self.sinks or self.block_size)):
            raise ValueError(f"{self.sinks} sinks do not go with {self.kind.value} retention")
        if self.block_size and (self.window % self.block_size or self.sinks % self.block_size):
            raise ValueError(
                f"{self.sinks} sinks and a window of {self.window} are not multiples of {self.block_size} tokens"
            )

    def __str__(self) -> str:
        """As it is written in a flag."""
        details = {
            RetentionKind.FULL: "",
            RetentionKind.SLIDING: f":window={self.window}",
            RetentionKind.WINDOW: f":sinks={self.sinks},window={self.window}",
        }
        return self.kind.value + details[self.kind]

    def rounded(self, block_size: int) -> Self:
        """The rule that blocks of ``block_size`` make of this one: WINDOW's sinks and window go up to whole blocks."""
        if self.kind is not RetentionKind.WINDOW:
            return self
        sinks, window = (-(-tokens // block_size) * block_size for tokens in (self.sinks, self.window))
        return replace(self, sinks=sinks, window=window, block_size=block_size)

    def first_visible(self, position: int) -> int:
        """Where the run that ends with the query begins: the query at ``position`` sees [first_visible, position] and,
        before that, the sinks [0, min(sinks, position + 1)).  The run is empty while the query is itself a sink."""
        if self.kind is RetentionKind.FULL:
            return 0
        if self.kind is RetentionKind.SLIDING:
            return max(0, position - self.window + 1)
        return max(self.sinks, position // self._block * self._block - self.window)

    def num_visible(self, position: int) -> int:
        """How many tokens the query at ``position`` sees, itself included."""
        return self.num_seen(position, position + 1)

    def num_seen(self, start: int, end: int) -> int:
        """How many tokens the queries at [start, end) see together: what has to be read for them at least."""
        return min(self.sinks, end) + max(0, end - self.first_visible(start))

    def dead_blocks(self, next_position: int, block_size: int) -> range:
        """The blocks that no query at ``next_position`` or later can see.

        block:     0      1      2      3      4
                [sinks][ dead][ dead][ visible to next_position ...)
        """
        start = self.sinks // block_size
        return range(start, max(start, self.first_visible(next_position) // block_size))

    def next_dead_position(self, next_position: int, block_size: int) -> int | None:
        """The first position after ``next_position`` from which one more block is dead; None: never."""
        if self.kind is RetentionKind.FULL:
            return None
        # The run has to begin at the end of the oldest block that is alive.
        begin = (self.dead_blocks(next_position, block_size).stop + 1) * block_size
        return begin + self.window - (1 if self.kind is RetentionKind.SLIDING else 0)

    def max_blocks(self, num_tokens: int, chunk_tokens: int, block_size: int) -> int:
        """The most blocks one sequence of ``num_tokens`` ever holds when it computes ``chunk_tokens`` a step."""
        whole = -(-num_tokens // block_size)
        if self.kind is RetentionKind.FULL:
            return whole
        chunk_tokens = min(chunk_tokens, num_tokens)
        if self.kind is RetentionKind.SLIDING:
            # The chunk [a, a + c) needs positions [a - window + 1, a + c); a bad alignment adds one block.
            span = self.window - 1 + chunk_tokens
            return min(whole, -(-span // block_size) + 1)
        # Sinks, the window before the chunk's first block, and the blocks that c tokens touch at worst.
        touched = -(-(chunk_tokens - 1) // block_size) + 1
        return min(whole, (self.sinks + self.window) // block_size + touched)

    @property
    def _block(self) -> int:
        if not self.block_size:
            raise ValueError(f"{self} has not been fitted to a block size")
        return self.block_size


FULL = Retention()


def sliding(window: int) -> Retention:
    return Retention(kind=RetentionKind.SLIDING, window=window)


def windowed(*, sinks: int, window: int) -> Retention:
    """WINDOW retention as asked for; ``rounded`` makes it what blocks can do."""
    return Retention(kind=RetentionKind.WINDOW, sinks=sinks, window=window)


def parse_retention(text: str) -> Retention:
    """``full`` or ``window:sinks=4,window=1024``; raises ``ValueError`` with what is expected."""
    name, _, rest = text.strip().lower().partition(":")
    if name == RetentionKind.FULL.value and not rest:
        return FULL
    if name != RetentionKind.WINDOW.value:
        raise ValueError("full or window:sinks=4,window=1024 is expected")
    given: dict[str, int] = {}
    for part in rest.split(","):
        key, _, value = part.strip().partition("=")
        if key not in ("sinks", "window") or key in given or not value.isdecimal():
            raise ValueError(
                f"{part.strip()!r} is not one of sinks=TOKENS and window=TOKENS, each once; "
                "write for example window:sinks=4,window=1024"
            )
        given[key] = int(value)
    if given.get("window", 0) < 1:
        raise ValueError("a window of at least 1 token is expected, for example window:sinks=4,window=1024")
    return windowed(sinks=given.get("sinks", 0), window=given["window"])
