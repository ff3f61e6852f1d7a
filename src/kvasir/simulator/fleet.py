"""The event loop: arrivals, step ends and step starts of all instances, in order of simulated time."""

import gc
import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from kvasir.core.events import RequestFinishedEvent
from kvasir.core.request import Request
from kvasir.simulator.arrival_source import ArrivalSource
from kvasir.simulator.instance import Instance, Refusal, StepStart
from kvasir.simulator.routing import Router
from kvasir.workload.traces.trace import TraceRequest


class Observer(Protocol):
    """Sees what happens, in order of time; changes nothing."""

    def on_arrival(self, request: TraceRequest, instance: Instance) -> None: ...

    def on_start(self, instance: Instance, start: StepStart, now_s: float) -> None: ...

    def on_finished(self, instance: Instance, event: RequestFinishedEvent, now_s: float) -> None: ...

    def on_refused(self, instance: Instance, refusal: Refusal, now_s: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Instances behind a router.  ``make_request`` turns a recorded request into one the scheduler takes."""

    instances: Sequence[Instance]
    router: Router
    make_request: Callable[[TraceRequest], Request]

    def run(self, source: ArrivalSource, observer: Observer) -> float:
        """Play everything ``source`` brings until all of it has ended; the time of the last end.

        At one instant: steps end first (which may bring the next requests of a closed loop), then requests arrive,
        then idle instances start.  That is what an engine does that takes in what has come between two steps.
        """
        ends: list[tuple[float, int]] = []
        now_s = 0.0
        with _no_collection():
            while True:
                arrival_s = source.next_s()
                if arrival_s is None and not ends:
                    return now_s
                now_s = ends[0][0] if arrival_s is None or (ends and ends[0][0] < arrival_s) else arrival_s
                idle: dict[int, Instance] = {}
                while ends and ends[0][0] <= now_s:
                    instance = self.instances[heapq.heappop(ends)[1]]
                    self._finish(instance, now_s, source, observer)
                    idle[instance.instance_id] = instance
                self._let_in(now_s, source, observer, idle)
                for place, instance in enumerate(idle.values()):
                    quiet_s = self._quiet_until(source, ends, now_s if place + 1 < len(idle) else math.inf)
                    start = instance.start(now_s, quiet_s)
                    observer.on_start(instance, start, now_s)
                    if start.num_steps:
                        heapq.heappush(ends, (start.end_s, instance.instance_id))

    def _let_in(self, now_s: float, source: ArrivalSource, observer: Observer, idle: dict[int, Instance]) -> None:
        """Requests that have arrived go to their instances; those between steps admit them.  ``idle`` gains the
        instances that were waiting for work.  A client that is turned away may send its next request at once."""
        is_settled = False
        while not is_settled:
            is_settled = True
            while (arrival_s := source.next_s()) is not None and arrival_s <= now_s:
                request = source.take()
                instance = self.router.choose(request)
                observer.on_arrival(request, instance)
                instance.submit(self.make_request(request))
                if not instance.is_stepping:
                    idle[instance.instance_id] = instance
            for instance in idle.values():
                for refusal in instance.admit(now_s):
                    observer.on_refused(instance, refusal, now_s)
                    source.on_end(refusal.request_id, now_s)
                    is_settled = False

    def _quiet_until(self, source: ArrivalSource, ends: list[tuple[float, int]], others_s: float) -> float:
        """No request arrives before this, so an instance may foresee its steps up to here.  Where answers bring new
        requests, the next end of any other instance might; ``others_s``: those about to start end no sooner."""
        arrival_s = source.next_s()
        quiet_s = math.inf if arrival_s is None else arrival_s
        if source.waits_for_answers:
            quiet_s = min(quiet_s, others_s, ends[0][0] if ends else math.inf)
        return quiet_s

    def _finish(self, instance: Instance, now_s: float, source: ArrivalSource, observer: Observer) -> None:
        for event in instance.finish(now_s):
            observer.on_finished(instance, event, now_s)
            source.on_end(event.request_id, now_s)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of small values come and go without cycles; looking for cycles would take a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
