"""All instances of a simulation added up at equal steps of time."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvasir.simulator.outcome import SimulationResult
from kvasir.simulator.timeline import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTime:
    """Equally long lists; at ``time_s[i]`` the fleet had ``used_blocks[i]`` in use, and so on."""

    time_s: list[float]
    used_blocks: list[int]
    cached_blocks: list[int]
    running: list[int]
    waiting: list[int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def over_time(result: SimulationResult, num_points: int) -> OverTime:
    """What each instance's latest sample said, summed; ``num_points`` from 0 to the last end."""
    grid = [result.duration_s * i / (num_points - 1) for i in range(num_points)]
    timelines = [instance.timeline.samples for instance in result.instances]

    def summed(read: Callable[[Sample], int]) -> list[int]:
        return [sum(column) for column in zip(*(_at(samples, grid, read) for samples in timelines), strict=True)]

    return OverTime(
        time_s=grid,
        used_blocks=summed(lambda sample: sample.num_used),
        cached_blocks=summed(lambda sample: sample.num_cached),
        running=summed(lambda sample: sample.num_running),
        waiting=summed(lambda sample: sample.num_waiting),
    )


def _at(samples: Sequence[Sample], grid: Sequence[float], read: Callable[[Sample], int]) -> list[int]:
    if not samples:
        return [0] * len(grid)
    times = [sample.time_s for sample in samples]
    return [read(samples[max(0, bisect_right(times, time_s) - 1)]) for time_s in grid]
