"""Whether the engine answers: what /health says, and how silence is told from work."""

from dataclasses import dataclass
from enum import Enum


class HealthStatus(Enum):
    LOADING = "loading"
    OK = "ok"
    STALLED = "stalled"
    """The engine lives and shows no progress; it may come back."""
    DEAD = "dead"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Health:
    status: HealthStatus
    reason: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.status is HealthStatus.OK


class StallWatch:
    """Adds up how long the engine was silent, counting only time in which somebody listened.

    A *sign* is any message (an idle engine sends one a second), *progress* is a finished step or an answered request.
    ``observe`` is told of every slice of time listened to, so a stopped or busy HTTP process accuses nobody.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._silent_s = 0.0
        self._without_progress_s = 0.0

    def sign(self, *, is_progress: bool) -> None:
        self._silent_s = 0.0
        if is_progress:
            self._without_progress_s = 0.0

    def observe(self, slice_s: float, *, has_work: bool) -> str | None:
        """The reason to turn red, or None."""
        self._silent_s += slice_s
        self._without_progress_s = self._without_progress_s + slice_s if has_work else 0.0
        if self._without_progress_s > self.timeout_s:
            return f"The engine has work and has not finished a step for {self._without_progress_s:.0f} s."
        if self._silent_s > self.timeout_s:
            return f"The engine has not been heard of for {self._silent_s:.0f} s."
        return None
