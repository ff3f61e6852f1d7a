"""Noise from one run each: measured requests drawn anew, many times (Efron's bootstrap)."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvasir.loadtest.saved_result import Side

_BOUNDS = (2.5, 97.5)
_FEWEST = 10
_FEWEST_BEYOND = 5
"""With fewer requests, or fewer values beyond a quantile, a band would be a guess: the draws can only repeat them."""


QUANTILES = {"mean": None, "median": 0.50, "p99": 0.99}
"""By the word in the keys of result files; None is the mean."""


class Resampler:
    """Intervals of relative differences between two results."""

    def __init__(self, a: "Side", b: "Side", *, rounds: int, seed: int) -> None:
        self._sides = (a, b)
        self._rounds = rounds
        self._seed = seed

    def interval(self, key: str) -> tuple[float, float] | None:
        """Bounds of (b - a) / a for ``key`` as in result files; None when the files say too little."""
        values = [self._values(side, number, key) for number, side in enumerate(self._sides)]
        a, b = values
        if a is None or b is None or not np.all(a > 0):
            return None
        low, high = np.percentile(b / a - 1.0, _BOUNDS)
        return float(low), float(high)

    def _values(self, side: "Side", number: int, key: str) -> "NDArray[Any] | None":
        """The statistic in every round."""
        rng = np.random.default_rng((self._seed, number))
        if key in side.slices:
            pieces = side.slices[key]
            draws = rng.integers(len(pieces), size=(self._rounds, len(pieces)))
            return pieces[draws].mean(axis=1)
        statistic, _, name = key.removesuffix("_ms").partition("_")
        values = side.latencies_s.get(name)
        if values is None or len(values) == 0:
            return None
        owner = side.itl_owner if name == "itl" else np.arange(len(values))
        num_requests = len(side.latencies_s["ttft"]) if name == "itl" else len(values)
        quantile = QUANTILES[statistic]
        if num_requests < _FEWEST or (quantile is not None and len(values) * (1 - quantile) < _FEWEST_BEYOND):
            return None
        order = np.argsort(values)
        ordered, owner = values[order], owner[order]
        found = np.empty(self._rounds)
        for round_number in range(self._rounds):
            counts = np.bincount(rng.integers(num_requests, size=num_requests), minlength=num_requests)
            found[round_number] = _statistic(ordered, counts[owner], quantile)
        return found


def _statistic(ordered: "NDArray[Any]", weights: "NDArray[Any]", quantile: float | None) -> float:
    """Mean or quantile of ascending values that occur ``weights`` times; interpolated as ``numpy.percentile``."""
    ends = np.cumsum(weights)
    total = int(ends[-1])
    if total == 0:
        return 0.0
    if quantile is None:
        return float((ordered * weights).sum() / total)
    place = quantile * (total - 1)
    below, above = np.searchsorted(ends, (int(place), min(int(place) + 1, total - 1)), side="right")
    return float(ordered[below] + (ordered[above] - ordered[below]) * (place % 1))
