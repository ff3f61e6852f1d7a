"""Time as a value that can be real or simulated."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...


class MonotonicClock:
    def now_s(self) -> float:
        return time.monotonic()


class VirtualClock:
    """A clock that moves only when told, for the simulator and for tests."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, duration_s: float) -> None:
        if duration_s < 0:
            raise ValueError(f"time cannot go back by {-duration_s} s")
        self._now_s += duration_s

    def advance_to(self, time_s: float) -> None:
        """Make it exactly ``time_s``, which must not be in the past."""
        if time_s < self._now_s:
            raise ValueError(f"time cannot go back from {self._now_s} s to {time_s} s")
        self._now_s = time_s
