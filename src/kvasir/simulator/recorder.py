"""Writes down a simulation while it runs: outcomes, timelines, gaps between tokens."""

from collections.abc import Callable, Sequence

from kvasir.core.events import RequestFinishedEvent
from kvasir.simulator.chrome_trace import ChromeTrace
from kvasir.simulator.cost_executor import CostExecutor
from kvasir.simulator.instance import Instance, Refusal, StepStart
from kvasir.simulator.outcome import InstanceTotals, RequestOutcome, SimulationResult
from kvasir.simulator.step_cost import StepCost
from kvasir.simulator.step_load import StepLoad
from kvasir.simulator.timeline import Timeline
from kvasir.workload.traces.trace import TraceRequest

OnDone = Callable[[int], None]
"""Told how many requests have ended, now and then."""
_REPORT_EVERY = 64


class Recorder:
    """The fleet's ``Observer``; ``executor`` makes executors that report their steps."""

    def __init__(self, chrome: ChromeTrace | None = None) -> None:
        self._chrome = chrome
        self._loads: dict[int, StepLoad] = {}
        """Each instance's latest, for the Chrome trace."""
        self.on_done: OnDone | None = None
        self.result = SimulationResult()
        self._arrivals_s: dict[str, float] = {}
        self._timelines: dict[int, Timeline] = {}
        self._num_requests: dict[int, int] = {}
        self._num_computed: dict[int, int] = {}
        self._num_done = 0

    def executor(self, instance_id: int, cost: StepCost) -> CostExecutor:
        """The instance's executor, which reports here."""
        gaps = self.result.gaps_us
        num_computed = self._num_computed
        loads = self._loads
        num_computed[instance_id] = 0

        def take_step(load: StepLoad, duration_s: float) -> None:
            num_computed[instance_id] += load.num_tokens
            loads[instance_id] = load
            if load.num_decodes:
                gaps[int(duration_s * 1e6 + 0.5)] += load.num_decodes

        def take_run(first: StepLoad, durations_s: list[float]) -> None:
            num_computed[instance_id] += first.num_sequences * len(durations_s)
            loads[instance_id] = first
            for duration_s in durations_s:
                gaps[int(duration_s * 1e6 + 0.5)] += first.num_sequences

        return CostExecutor(cost, take_step, take_run)

    def on_arrival(self, request: TraceRequest, instance: Instance) -> None:
        self._arrivals_s[request.request_id] = request.arrival_s
        self._num_requests[instance.instance_id] = self._num_requests.get(instance.instance_id, 0) + 1

    def on_start(self, instance: Instance, start: StepStart, now_s: float) -> None:
        timeline = self._timelines.get(instance.instance_id)
        if timeline is None:
            timeline = self._timelines[instance.instance_id] = Timeline()
        timeline.take(instance, now_s)
        if self._chrome is not None and start.num_steps:
            self._chrome.on_step(instance, start, self._loads[instance.instance_id], now_s)

    def on_finished(self, instance: Instance, event: RequestFinishedEvent, now_s: float) -> None:
        """The engine counts from when it admitted the request; its client from when it was sent."""
        arrival_s = self._arrivals_s.pop(event.request_id)
        waited_s = max(0.0, now_s - event.e2e_s - arrival_s)
        outcome = RequestOutcome(
            event.request_id,
            instance.instance_id,
            arrival_s,
            waited_s + event.queue_s,
            waited_s + (event.ttft_s or 0.0),
            now_s - arrival_s,
            event.num_prompt_tokens,
            event.num_cached_tokens,
            event.num_output_tokens,
            event.num_preemptions,
        )
        self.result.outcomes.append(outcome)
        if self._chrome is not None:
            self._chrome.on_request(outcome)
        self._one_done()

    def on_refused(self, instance: Instance, refusal: Refusal, now_s: float) -> None:
        del self._arrivals_s[refusal.request_id]
        self.result.refused.append(refusal)
        self._one_done()

    def close(self, instances: Sequence[Instance], duration_s: float) -> SimulationResult:
        self.result.duration_s = duration_s
        self.result.instances = [self._totals(instance) for instance in instances]
        return self.result

    def _totals(self, instance: Instance) -> InstanceTotals:
        stats = instance.scheduler.stats
        return InstanceTotals(
            instance_id=instance.instance_id,
            num_requests=self._num_requests.get(instance.instance_id, 0),
            num_steps=stats.num_steps,
            num_preemptions=stats.num_preemptions,
            num_computed_tokens=self._num_computed.get(instance.instance_id, 0),
            busy_s=instance.busy_s,
            num_blocks=sum(pool.num_blocks for pool in instance.manager.pools),
            timeline=self._timelines.get(instance.instance_id, Timeline()),
        )

    def _one_done(self) -> None:
        self._num_done += 1
        if self.on_done is not None and self._num_done % _REPORT_EVERY == 0:
            self.on_done(self._num_done)
