"""How long prompts and answers are: a fixed length, a range, or a mix of short questions with long documents."""

import math
import random
from dataclasses import dataclass
from typing import Self

from kvasir.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthMix:
    """Log-normal lengths, clipped: most are short, a few are very long, as in recorded chat traffic.

    ``*_median`` and ``*_max`` are tokens; ``spread`` is the sigma of the logarithm.
    """

    prompt_median: int = 160
    prompt_max: int = 1024
    output_median: int = 56
    output_max: int = 256
    spread: float = 0.9

    def draw(self, num_requests: int, seed: int) -> list[tuple[int, int]]:
        """(prompt tokens, output tokens) of each request; at least 8 each."""
        rng = random.Random(seed)
        return [
            (self._one(rng, self.prompt_median, self.prompt_max), self._one(rng, self.output_median, self.output_max))
            for _ in range(num_requests)
        ]

    def _one(self, rng: random.Random, median: int, most: int) -> int:
        return max(8, min(most, round(median * rng.lognormvariate(0.0, self.spread))))


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRange:
    """Whole lengths from ``low`` to ``high``, log-uniform: a doubling is as likely anywhere in the range."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """``512``, or ``64:4096``.  Raises ``ConfigError``."""
        low, colon, high = text.partition(":")
        try:
            lengths = cls(low=int(low), high=int(high if colon else low))
        except ValueError:
            lengths = None
        if lengths is None or not 1 <= lengths.low <= lengths.high:
            raise ConfigError(f"{text!r} is no length; write one like 512, or a range like 64:4096.")
        return lengths

    def draw(self, rng: random.Random) -> int:
        if self.low == self.high:
            return self.low
        return round(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"
