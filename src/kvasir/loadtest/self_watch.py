"""How much of what is measured is the load test itself: its CPU time, and how late its own loop wakes up."""

import asyncio
import time
from dataclasses import dataclass

from kvasir.workload.latency import percentile

_PERIOD_S = 0.02
LATE_S = 0.005
"""A loop later than this at its 99th percentile blurs times per token; the run says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCost:
    """``cpu_share``: CPU seconds of this process per second of the load.  ``lag_*``: how much later than asked for the
    event loop woke up; a chunk's time can be off by as much."""

    cpu_share: float
    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float

    @property
    def is_late(self) -> bool:
        return self.lag_p99_s > LATE_S


class SelfWatch:
    """Watches the running loop while used as a context."""

    def __init__(self) -> None:
        self._lags_s: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._began = (0.0, 0.0)
        self._ended: tuple[float, float] | None = None

    async def __aenter__(self) -> "SelfWatch":
        self._began = _clocks()
        self._task = asyncio.create_task(self._wake_often())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._ended = _clocks()

    @property
    def cost(self) -> ClientCost:
        wall_s, cpu_s = (end - begin for begin, end in zip(self._began, self._ended or _clocks(), strict=True))
        lags = sorted(self._lags_s) or [0.0]
        return ClientCost(
            cpu_share=cpu_s / wall_s if wall_s > 0 else 0.0,
            lag_p50_s=percentile(lags, 50),
            lag_p99_s=percentile(lags, 99),
            lag_max_s=lags[-1],
        )

    async def _wake_often(self) -> None:
        while True:
            asked_s = time.perf_counter() + _PERIOD_S
            await asyncio.sleep(_PERIOD_S)
            self._lags_s.append(max(0.0, time.perf_counter() - asked_s))


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()
