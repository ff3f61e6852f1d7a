"""``EvictionRule``: how many tokens of a prompt each head keeps once the prompt is computed, and which in any case.

Counts and protected positions are functions of the prompt's length alone, so the block manager, the planner and the
simulator know them without a tensor.  Which of the other tokens a head keeps is decided by ``compression/eviction.py``.
"""

import math
from dataclasses import dataclass
from enum import Enum

from kvasir.core.errors import ConfigError


class EvictionKind(Enum):
    KEYDIFF = "keydiff"
    """Keep the keys least like the head's mean key: what all tokens have in common is told by few of them."""
    RANDOM = "random"
    """Keep tokens by lot, each head its own: what every score has to beat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionRule:
    """``keep``: share of the prompt's tokens that each head keeps.  Always kept are the first ``sinks`` tokens, the
    last ``recent`` ones, and a request's instructions; if these are more than ``keep`` allows, they are what is kept.

    ``seed`` is RANDOM's lot; a head draws the same positions in every request.
    """

    kind: EvictionKind
    keep: float = 0.5
    sinks: int = 16
    recent: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.keep <= 1.0:
            raise ConfigError(f"--kv-eviction keep must be above 0 and at most 1, got {self.keep:g}.")
        if min(self.sinks, self.recent, self.seed) < 0:
            raise ConfigError(f"--kv-eviction {self}: sinks, recent and seed must be at least 0.")

    def __str__(self) -> str:
        """As it is written in a flag."""
        text = f"{self.kind.value}:keep={self.keep:g},sinks={self.sinks},recent={self.recent}"
        return f"{text},seed={self.seed}" if self.kind is EvictionKind.RANDOM else text

    def num_first(self, num_prompt: int, num_pinned: int) -> int:
        """How many tokens at the beginning of a prompt are always kept."""
        return min(num_prompt, max(self.sinks, num_pinned))

    def num_kept(self, num_prompt: int, num_pinned: int = 0) -> int:
        """How many of ``num_prompt`` tokens each head keeps, the first ``num_pinned`` among them."""
        first = self.num_first(num_prompt, num_pinned)
        protected = first + min(self.recent, num_prompt - first)
        # Past floating point: 0.1 of 30 tokens is 3, not 4.
        wanted = math.ceil(round(self.keep * num_prompt, 6))
        return max(1, protected, wanted)

    def num_evicted(self, num_prompt: int, num_pinned: int = 0) -> int:
        return num_prompt - self.num_kept(num_prompt, num_pinned)


_COUNTS = ("sinks", "recent", "seed")


def parse_eviction(text: str) -> EvictionRule:
    """``keydiff:keep=0.5,sinks=16,recent=64`` or ``random:keep=0.5,seed=0``, else ``ValueError``."""
    name, _, rest = text.strip().lower().partition(":")
    example = "write for example keydiff:keep=0.5 or random:keep=0.5,seed=0"
    if name not in {kind.value for kind in EvictionKind}:
        raise ValueError(f"there is no eviction {name!r}; {example}, or off")
    kind = EvictionKind(name)
    given: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, _, value = part.partition("=")
        is_known = key == "keep" or (key in _COUNTS and (key != "seed" or kind is EvictionKind.RANDOM))
        if not is_known or key in given:
            raise ValueError(f"{part!r} is not one of its options, each given once; {example}")
        given[key] = value
    if "keep" not in given:
        raise ValueError(f"keep is missing, the share of the prompt that stays; {example}")
    try:
        keep = float(given.pop("keep"))
        return EvictionRule(kind=kind, keep=keep, **{key: int(value) for key, value in given.items()})
    except ValueError:
        raise ValueError(f"keep is a number from 0 to 1, the others are whole numbers; {example}") from None
