"""What an instance looked like over time, in a bounded number of samples, with exact means and peaks beside them."""

from typing import NamedTuple

from kvasir.simulator.instance import Instance

MAX_SAMPLES = 1024


class Sample(NamedTuple):
    """State at the start of a step.  Blocks are summed over groups; ``num_hit_tokens`` of ``num_looked_up_tokens`` so
    far were found in the cache."""

    time_s: float
    num_used: int
    num_cached: int
    num_running: int
    num_waiting: int
    num_looked_up_tokens: int
    num_hit_tokens: int


class Timeline:
    """One per instance.  Every ``stride``-th step is kept; when there are too many, every other sample is dropped."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.peak_used = 0
        self.max_running = 0
        self._stride = 1
        self._num_steps = 0
        self._used_seconds = 0.0
        self._running_seconds = 0.0
        self._last_s = 0.0
        self._last_used = 0
        self._last_running = 0

    def take(self, instance: Instance, now_s: float) -> None:
        num_used = sum([pool.num_used for pool in instance.manager.pools])
        num_running = len(instance.scheduler.running)
        elapsed_s = now_s - self._last_s
        self._used_seconds += self._last_used * elapsed_s
        self._running_seconds += self._last_running * elapsed_s
        self._last_s, self._last_used, self._last_running = now_s, num_used, num_running
        self.peak_used = max(self.peak_used, num_used)
        self.max_running = max(self.max_running, num_running)
        if self._num_steps % self._stride == 0:
            self._keep(instance, now_s, num_used, num_running)
        self._num_steps += 1

    def mean_used(self) -> float:
        """Blocks in use, averaged over time."""
        return self._used_seconds / self._last_s if self._last_s else 0.0

    def mean_running(self) -> float:
        return self._running_seconds / self._last_s if self._last_s else 0.0

    def _keep(self, instance: Instance, now_s: float, num_used: int, num_running: int) -> None:
        stats = instance.scheduler.stats
        self.samples.append(
            Sample(
                now_s,
                num_used,
                sum([pool.num_cached for pool in instance.manager.pools]),
                num_running,
                len(instance.scheduler.waiting),
                stats.num_prefix_queries,
                stats.num_prefix_hits,
            )
        )
        if len(self.samples) >= 2 * MAX_SAMPLES:
            del self.samples[1::2]
            self._stride *= 2
