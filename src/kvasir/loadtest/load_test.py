"""One load test from the first look at the server to the last record: preflight, prompts, warm-up, load, watch."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from kvasir.core.progress import Progress, no_progress
from kvasir.loadtest.client import Client, Tally
from kvasir.loadtest.connection import allow_many_connections
from kvasir.loadtest.gauges import Gauge, GaugeWatch, ServerGauges
from kvasir.loadtest.make_workload import WorkloadMaker
from kvasir.loadtest.page import ask_page
from kvasir.loadtest.plan import Workload
from kvasir.loadtest.preflight import Preflight, PreflightError, find_model, preflight
from kvasir.loadtest.prepared import PreparedSession, prepare
from kvasir.loadtest.record import FailureKind
from kvasir.loadtest.runner import LoadRunner, Pace, Played, Stop
from kvasir.loadtest.self_watch import ClientCost, SelfWatch
from kvasir.loadtest.settings import LoadTestSettings
from kvasir.loadtest.target import Api
from kvasir.workload.arrivals import ArrivalProcess

_WARM_UP_SEED = 1 << 20
_TICK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """What a watcher sees of a running load, twice a second."""

    label: str
    num_planned: int
    elapsed_s: float
    tally: Tally
    gauges: dict[Gauge, float]


Watcher = Callable[[LiveView], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One load of a test: a plain test has one, a sweep or a repeated test several.

    ``arrivals`` None: the trace's own times.
    """

    label: str
    arrivals: ArrivalProcess | None
    max_concurrency: int | None
    num_sessions: int | None
    seed: int

    @property
    def request_rate(self) -> float | None:
        return None if self.arrivals is None else self.arrivals.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Everything that was seen of one load."""

    point: Point
    workload_name: str
    workload: dict[str, object]
    num_sessions: int
    num_left_out: int
    played: Played
    cost: ClientCost
    gauges: ServerGauges | None = None


@dataclass(slots=True)
class LoadTest:
    """A test against a server that has passed the preflight; use ``opened``."""

    settings: LoadTestSettings
    preflight: Preflight
    stop: Stop
    _client: Client
    _maker: WorkloadMaker
    progress: Progress = field(default=no_progress)

    @property
    def max_tokens(self) -> int | None:
        return self._maker.max_tokens

    def points(self) -> list[Point]:
        """One for each repetition; every one has prompts of its own."""
        load = self.settings.load
        return [
            Point(
                label=f"run {run + 1} of {load.num_runs}" if load.num_runs > 1 else "load",
                arrivals=None if load.uses_recorded_times else load.arrivals,
                max_concurrency=load.max_concurrency,
                num_sessions=load.num_sessions,
                seed=load.seed + run,
            )
            for run in range(load.num_runs)
        ]

    async def run(self, point: Point, watcher: Watcher | None = None) -> RunData:
        """Play one load; when stopped on the way, what there is until then.  Raises ``KvasirError`` when it cannot
        begin."""
        workload = self._maker.make(point.num_sessions, point.seed)
        sessions = await prepare(workload, self.preflight.bodies, self.progress, lambda: self.stop.is_set)
        await self._warm_up(point)
        if self.settings.load.resets_prefix_cache and not self.stop.is_set:
            await self._reset_prefix_cache()
        pace = Pace(
            arrivals_s=_arrivals(point, sessions),
            max_concurrency=point.max_concurrency,
            max_duration_s=self.settings.load.max_duration_s,
        )
        runner = LoadRunner(self._client, self.preflight.bodies, self.stop)
        async with AsyncExitStack() as watches:
            gauges = await self._gauge_watch(watches)
            cost = await watches.enter_async_context(SelfWatch())
            if watcher is not None:
                await watches.enter_async_context(_ticking(point, sessions, runner, gauges, watcher))
            with _no_collections():
                played = await runner.play(sessions, pace)
        return _run_data(point, workload, len(sessions), played, cost.cost, gauges)

    async def _gauge_watch(self, watches: AsyncExitStack) -> GaugeWatch | None:
        interval_s = self.settings.measure.metrics_interval_s
        if interval_s is None:
            return None
        return await watches.enter_async_context(GaugeWatch(self.settings.endpoint.target, interval_s))

    async def _warm_up(self, point: Point) -> None:
        """The same kind of requests with other prompts, all at once; nothing of them is measured."""
        num_warmups = self.settings.load.num_warmups
        if num_warmups == 0 or self.stop.is_set:
            return
        workload = self._maker.make(num_warmups, _WARM_UP_SEED + point.seed)
        sessions = await prepare(workload, self.preflight.bodies, no_progress)
        self.progress("warm up", 0.0)
        runner = LoadRunner(self._client, self.preflight.bodies, self.stop)
        pace = Pace(arrivals_s=[0.0] * len(sessions), max_concurrency=point.max_concurrency)
        played = await runner.play(sessions, pace)
        self.progress("warm up", 1.0)
        failure = next((record.failure for record in played.records if record.failure is not None), None)
        if failure is not None and failure.kind is not FailureKind.ABORTED:
            raise PreflightError(f"The warm-up failed ({failure.label}): {failure.message}.")

    async def _reset_prefix_cache(self) -> None:
        client = self._client
        status, page = await ask_page(client.pool, client.target.command("/reset_prefix_cache"))
        if status != 200:
            raise PreflightError(
                f"The server cannot forget its prefixes (POST /reset_prefix_cache: {status or page}); leave out "
                "--reset-prefix-cache."
            )


@asynccontextmanager
async def opened(settings: LoadTestSettings, progress: Progress = no_progress) -> AsyncIterator[LoadTest]:
    """Look at the server and send it a first request.  Raises ``PreflightError``, ``ConfigError``."""
    endpoint = settings.endpoint
    allow_many_connections()
    client = Client(endpoint.target, endpoint.timeout_s)
    try:
        model = await find_model(client, endpoint.model, endpoint.wait_s)
        passed = await preflight(client, model, endpoint.body, settings.workload.prompts)
        yield LoadTest(
            settings=settings,
            preflight=passed,
            stop=Stop(),
            _client=client,
            _maker=WorkloadMaker(
                settings=settings.workload,
                rate=passed.rate,
                max_model_len=model.max_model_len,
                is_chat_route=endpoint.target.api is Api.CHAT,
            ),
            progress=progress,
        )
    finally:
        client.close()


@contextmanager
def _no_collections() -> Iterator[None]:
    """Python's cycle collector stops everything while it looks; a load makes no cycles, and it can wait."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@asynccontextmanager
async def _ticking(
    point: Point, sessions: list[PreparedSession], runner: LoadRunner, gauges: GaugeWatch | None, watcher: Watcher
) -> AsyncIterator[None]:
    num_planned = sum(len(session.turns) for session in sessions)

    def look() -> None:
        watcher(
            LiveView(
                label=point.label,
                num_planned=num_planned,
                elapsed_s=runner.elapsed_s,
                tally=runner.tally,
                gauges=gauges.latest if gauges else {},
            )
        )

    async def look_often() -> None:
        while True:
            look()
            await asyncio.sleep(_TICK_S)

    task = asyncio.create_task(look_often())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        look()


def _arrivals(point: Point, sessions: list[PreparedSession]) -> list[float]:
    if point.arrivals is not None:
        return point.arrivals.times_s(len(sessions))
    return [session.arrival_s or 0.0 for session in sessions]


def _run_data(
    point: Point,
    workload: Workload,
    num_sessions: int,
    played: Played,
    cost: ClientCost,
    gauges: GaugeWatch | None,
) -> RunData:
    return RunData(
        point=point,
        workload_name=workload.name,
        workload=workload.description,
        num_sessions=num_sessions,
        num_left_out=workload.num_left_out,
        played=played,
        cost=cost,
        gauges=gauges.gauges if gauges else None,
    )
