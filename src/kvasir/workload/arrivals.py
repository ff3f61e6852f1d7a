"""When requests arrive: at a rate, in bursts, along a ramp.  Shared by simulator and load test.

Open-loop processes make all arrival times beforehand, as ``vllm bench serve`` does, so that loads can be compared.
"""

import random
from dataclasses import dataclass
from enum import Enum

from kvasir.core.errors import ConfigError


class RampShape(Enum):
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalProcess:
    """``rate`` requests a second on average; infinite: all at 0.

    ``burstiness`` b draws gaps from Gamma(shape b, scale 1 / (rate * b)): 1 is Poisson, below 1 bursts, above 1 more
    regular, infinite a metronome.  With ``end_rate`` the rate moves from ``rate`` to it over the requests in ``ramp``
    shape; gaps then follow the momentary rate.  Same ``seed``, same times.
    """

    rate: float
    burstiness: float = 1.0
    end_rate: float | None = None
    ramp: RampShape = RampShape.LINEAR
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("request rate", self.rate), ("end rate", self.end_rate), ("burstiness", self.burstiness)):
            if value is not None and not value > 0:
                raise ConfigError(f"The {name} must be above 0, got {value}.")
        if self.end_rate is not None and (self.rate == float("inf") or self.end_rate == float("inf")):
            raise ConfigError("A ramp needs finite rates at both ends.")

    def times_s(self, num_requests: int) -> list[float]:
        """Ascending arrival times.  Without a ramp the gaps are scaled so that they fill exactly num_requests / rate:
        the rate that was asked for is the rate that is offered (convention of ``vllm bench serve``)."""
        if num_requests < 1:
            return []
        if self.rate == float("inf"):
            return [0.0] * num_requests
        rng = random.Random(self.seed)
        gaps = [self._gap(rng, self._rate_at(i, num_requests)) for i in range(num_requests)]
        total_s = sum(gaps)
        scale = num_requests / self.rate / total_s if self.end_rate is None else 1.0
        now_s = 0.0
        times = []
        for gap in gaps:
            now_s += gap * scale
            times.append(now_s)
        return times

    def _rate_at(self, index: int, num_requests: int) -> float:
        if self.end_rate is None or num_requests == 1:
            return self.rate
        share = index / (num_requests - 1)
        if self.ramp is RampShape.EXPONENTIAL:
            return self.rate * (self.end_rate / self.rate) ** share
        return self.rate + (self.end_rate - self.rate) * share

    def _gap(self, rng: random.Random, rate: float) -> float:
        if self.burstiness == float("inf"):
            return 1.0 / rate
        return rng.gammavariate(self.burstiness, 1.0 / (rate * self.burstiness))
