"""Lengths of prompts and outputs as a person states them, and what running sequences hold at a random moment."""

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from kvasir.core.errors import ConfigError

_SAMPLES = 256
_MOMENTS = 4
_HELP = "write a number, 'uniform:100-2000', or 'lognormal:MEDIAN,P95' such as 'lognormal:600,4000'"


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDistribution:
    """``quantile(u)`` for u in (0, 1), in whole tokens; ``text`` is how it was written."""

    text: str
    median: float
    spread: float = 0.0
    """Sigma of the logarithm (log-normal); 0 is a fixed length."""
    low: int = 0
    high: int = 0
    """Ends of a uniform distribution when ``high`` is above 0."""

    def quantile(self, u: float) -> int:
        if self.high:
            return round(self.low + u * (self.high - self.low))
        if not self.spread:
            return round(self.median)
        return max(1, round(self.median * math.exp(self.spread * NormalDist().inv_cdf(u))))

    @property
    def mean(self) -> float:
        if self.high:
            return (self.low + self.high) / 2
        return self.median * math.exp(self.spread**2 / 2)


def parse_lengths(text: str) -> LengthDistribution:
    """Raises ``ConfigError`` saying what is understood."""
    kind, _, rest = text.strip().partition(":")
    try:
        if not rest:
            return _positive(text, LengthDistribution(text=text, median=float(int(kind.replace("_", "")))))
        if kind == "uniform":
            low, high = (int(part) for part in rest.split("-"))
            if 0 < low < high:
                return LengthDistribution(text=text, median=(low + high) / 2, low=low, high=high)
        if kind == "lognormal":
            median, p95 = (float(part) for part in rest.split(","))
            if 0 < median < p95:
                sigma = math.log(p95 / median) / NormalDist().inv_cdf(0.95)
                return LengthDistribution(text=text, median=median, spread=sigma)
    except ValueError:
        pass
    raise ConfigError(f"{text!r} is not a length distribution; {_HELP}.")


def _positive(text: str, found: LengthDistribution) -> LengthDistribution:
    if found.median < 1:
        raise ConfigError(f"{text!r} is not a length distribution; {_HELP}.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSample:
    """Tokens held by running sequences at a random moment, with weights that sum to 1.

    A request with p prompt and o output tokens is seen with weight o (it runs for o steps) holding between p and
    p + o.  Means of whole requests beside them.
    """

    held_lengths: tuple[int, ...]
    weights: tuple[float, ...]
    mean_prompt: float
    mean_output: float
    max_total: int

    @property
    def mean_held(self) -> float:
        return sum(length * weight for length, weight in zip(self.held_lengths, self.weights, strict=True))


@lru_cache(maxsize=8)
def sample_lengths(
    prompts: LengthDistribution, outputs: LengthDistribution, max_model_len: int, shared_prefix: int = 0
) -> LengthSample:
    """A stratified sample, the same every time; totals are cut at ``max_model_len``.

    Prompts are those of the distribution behind ``shared_prefix`` tokens that all share."""
    order = list(range(_SAMPLES))
    random.Random(0).shuffle(order)  # prompt and output lengths are drawn independently
    held: list[int] = []
    weights: list[float] = []
    totals = []
    prompt_sum = output_sum = 0
    for i, j in enumerate(order):
        prompt = min(shared_prefix + prompts.quantile((i + 0.5) / _SAMPLES), max_model_len - 1)
        output = max(1, min(outputs.quantile((j + 0.5) / _SAMPLES), max_model_len - prompt))
        prompt_sum += prompt
        output_sum += output
        totals.append(prompt + output)
        for moment in range(_MOMENTS):
            held.append(prompt + math.ceil(output * (moment + 0.5) / _MOMENTS))
            weights.append(output / _MOMENTS)
    whole = sum(weights)
    return LengthSample(
        held_lengths=tuple(held),
        weights=tuple(weight / whole for weight in weights),
        mean_prompt=prompt_sum / _SAMPLES,
        mean_output=output_sum / _SAMPLES,
        max_total=max(totals),
    )
