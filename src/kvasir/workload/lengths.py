"""How long prompts and answers are in a load that mixes short questions with long documents."""

import random
from dataclasses import dataclass


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
