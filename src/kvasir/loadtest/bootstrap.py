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
_QUANTILES = {"median": 0.50, "p99": 0.99}
"""By the word in the keys of result files."""


class Resampler:
    """Intervals of relative differences between two results."""

    def __init__(self, a: "Side", b: "Side", *, rounds: int, seed: int) -> None:
        self._sides = (a, b)
        self._rounds = rounds
        self._seed = seed
        self._drawn: dict[tuple[int, str], dict[str, NDArray[Any]]] = {}
        """By side and latency: each statistic in every round, from the same draws."""

    def interval(self, key: str) -> tuple[float, float] | None:
        """Bounds of (b - a) / a for ``key`` as in result files; None when the files say too little."""
        a, b = (self._values(number, key) for number in range(len(self._sides)))
        if a is None or b is None or not np.all(a > 0):
            return None
        low, high = np.percentile(b / a - 1.0, _BOUNDS)
        return float(low), float(high)

    def _values(self, number: int, key: str) -> "NDArray[Any] | None":
        """The statistic in every round."""
        side = self._sides[number]
        if key in side.slices:
            rng = np.random.default_rng((self._seed, number))
            pieces = side.slices[key]
            return pieces[rng.integers(len(pieces), size=(self._rounds, len(pieces)))].mean(axis=1)
        statistic, _, name = key.removesuffix("_ms").partition("_")
        if name not in side.latencies_s:
            return None
        if (number, name) not in self._drawn:
            self._drawn[number, name] = self._draw(number, name)
        return self._drawn[number, name].get(statistic)

    def _draw(self, number: int, name: str) -> "dict[str, NDArray[Any]]":
        side = self._sides[number]
        values = side.latencies_s[name]
        owner = side.itl_owner if name == "itl" else np.arange(len(values))
        # Gaps of one answer come and go together: what is drawn is requests.
        num_requests = len(side.latencies_s["ttft"]) if name == "itl" else len(values)
        if num_requests < _FEWEST or len(values) == 0:
            return {}
        quantiles = {
            word: quantile for word, quantile in _QUANTILES.items() if len(values) * (1 - quantile) >= _FEWEST_BEYOND
        }
        order = np.argsort(values)
        ordered, owner = values[order], owner[order]
        found = {word: np.empty(self._rounds) for word in ("mean", *quantiles)}
        rng = np.random.default_rng((self._seed, number))
        for round_number in range(self._rounds):
            counts = np.bincount(rng.integers(num_requests, size=num_requests), minlength=num_requests)[owner]
            ends = np.cumsum(counts)
            found["mean"][round_number] = ordered @ counts / max(1, ends[-1])
            for word, quantile in quantiles.items():
                found[word][round_number] = _quantile(ordered, ends, quantile)
        return found


def _quantile(ordered: "NDArray[Any]", ends: "NDArray[Any]", quantile: float) -> float:
    """Of ascending values of which value i fills the places up to ``ends[i]``; interpolated as ``numpy.percentile``."""
    total = int(ends[-1])
    if total == 0:
        return 0.0
    place = quantile * (total - 1)
    below, above = np.searchsorted(ends, (int(place), min(int(place) + 1, total - 1)), side="right")
    return float(ordered[below] + (ordered[above] - ordered[below]) * (place % 1))
