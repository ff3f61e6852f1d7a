"""Latency in the field's terms: TTFT, TPOT, ITL, E2EL, their percentiles, and goodput under objectives.

Definitions are those of ``vllm bench serve``: TPOT = (E2EL - TTFT) / (output tokens - 1), the first token left out;
requests with one output token have no TPOT (and count as 0 for goodput).  Percentiles interpolate linearly.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from kvasir.core.errors import ConfigError

PERCENTILES = (50.0, 90.0, 95.0, 99.0)


def percentile(ordered: Sequence[float], q: float) -> float:
    """The ``q``-th percentile (0..100) of ascending values, linear between neighbours as numpy's default."""
    if not ordered:
        raise ValueError("nothing has no percentiles")
    place = (len(ordered) - 1) * q / 100.0
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Statistics of one measure in its own unit; ``percentiles`` by q.  ``std`` is that of the population."""

    num_values: int
    mean: float
    std: float
    min: float
    max: float
    percentiles: dict[float, float]

    @property
    def median(self) -> float:
        return self.percentiles[50.0]

    @classmethod
    def of(cls, values: Iterable[float], qs: Sequence[float] = PERCENTILES) -> Self | None:
        """None when there are no values.  The median is always among the percentiles."""
        ordered = sorted(values)
        if not ordered:
            return None
        mean = math.fsum(ordered) / len(ordered)
        variance = math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)
        return cls(
            num_values=len(ordered),
            mean=mean,
            std=math.sqrt(variance),
            min=ordered[0],
            max=ordered[-1],
            percentiles={float(q): percentile(ordered, q) for q in sorted({50.0, *qs})},
        )

    def to_json(self, scale: float = 1.0) -> dict[str, float]:
        """mean, median, std, min, max and pXX, multiplied by ``scale``."""
        values = {"mean": self.mean, "median": self.median, "std": self.std, "min": self.min, "max": self.max}
        values |= {f"p{q:g}": value for q, value in self.percentiles.items()}
        return {name: value * scale for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """One answered request, in seconds since it was sent.  ``tpot_s`` is None for a single output token."""

    ttft_s: float
    e2e_s: float
    num_output_tokens: int

    @property
    def tpot_s(self) -> float | None:
        if self.num_output_tokens <= 1:
            return None
        return (self.e2e_s - self.ttft_s) / (self.num_output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Objectives in seconds; None: not asked for.  A request is good when it meets every one that is given."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @classmethod
    def parse(cls, words: Iterable[str]) -> Self:
        """``ttft:500 tpot:50 e2el:10000``, milliseconds, as ``vllm bench serve --goodput`` takes them."""
        found: dict[str, float] = {}
        for word in " ".join(words).replace(",", " ").split():
            name, _, text = word.partition(":")
            field = _SLO_FIELDS.get(name.lower())
            try:
                value_ms = float(text)
            except ValueError:
                value_ms = -1.0
            if field is None or not 0 < value_ms < math.inf:
                raise ConfigError(f"{word!r} is no objective; write ttft:MS, tpot:MS or e2el:MS, like ttft:500.")
            found[field] = value_ms / 1000.0
        return cls(**found)

    @property
    def is_empty(self) -> bool:
        return self.ttft_s is None and self.tpot_s is None and self.e2e_s is None

    def is_met_by(self, timing: RequestTiming) -> bool:
        return (
            (self.ttft_s is None or timing.ttft_s <= self.ttft_s)
            and (self.tpot_s is None or (timing.tpot_s or 0.0) <= self.tpot_s)
            and (self.e2e_s is None or timing.e2e_s <= self.e2e_s)
        )

    def __str__(self) -> str:
        parts = (("ttft", self.ttft_s), ("tpot", self.tpot_s), ("e2el", self.e2e_s))
        return " ".join(f"{name}:{value * 1000:g}" for name, value in parts if value is not None) or "none"


_SLO_FIELDS = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s", "e2e": "e2e_s"}
