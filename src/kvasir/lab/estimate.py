"""Figures with their uncertainty: block bootstrap over documents, fixed seeds, 95 % intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

NUM_RESAMPLES = 1000
CONFIDENCE = 0.95
_SEED = 20240613


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """``value`` of ``num_samples`` tokens or answers; its interval is None where fewer than two documents were seen.

    Tokens of one document resemble each other, so documents are what is resampled: an interval over single tokens would
    be too narrow.
    """

    value: float
    low: float | None = None
    high: float | None = None
    num_samples: int = 0

    @property
    def lowest(self) -> float:
        """The interval's lower end, or the value where there is none."""
        return self.value if self.low is None else self.low

    @property
    def highest(self) -> float:
        return self.value if self.high is None else self.high

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """Through a growing function, which keeps the order of value and interval."""
        return Estimate(
            value=function(self.value),
            low=None if self.low is None else function(self.low),
            high=None if self.high is None else function(self.high),
            num_samples=self.num_samples,
        )


def exact(value: float, num_samples: int) -> Estimate:
    """A figure without an interval: a largest value, a quantile."""
    return Estimate(value=value, num_samples=num_samples)


def mean_of(documents: Sequence[F64]) -> Estimate:
    """The mean over all samples of all documents, each document a block; documents without samples count for nothing.

    For a paired difference give the differences: what both sides share then cancels before anything is resampled.
    """
    sums = np.array([samples.sum() for samples in documents])
    counts = np.array([len(samples) for samples in documents])
    return ratio_of(sums, counts)


def ratio_of(sums: F64, counts: NDArray[np.int64]) -> Estimate:
    """sum(sums) / sum(counts), resampled over documents, with the percentile interval."""
    is_there = counts > 0
    sums, counts = sums[is_there], counts[is_there]
    num_samples = int(counts.sum())
    if num_samples == 0:
        return Estimate(value=0.0)
    value = float(sums.sum() / num_samples)
    if len(counts) < 2:
        return exact(value, num_samples)
    drawn = np.random.default_rng(_SEED).integers(len(counts), size=(NUM_RESAMPLES, len(counts)))
    ratios = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(ratios, (tail, 1.0 - tail))
    # A sum in another order may differ in its last bit; the interval never excludes its own value for that.
    return Estimate(value=value, low=min(float(low), value), high=max(float(high), value), num_samples=num_samples)
