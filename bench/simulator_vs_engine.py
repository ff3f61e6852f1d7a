"""The simulator beside our own engine: step costs fitted on single streams, latencies foretold for batches.

W1 (one stream, 128 + 128 tokens) and W2 (one stream, 4,096 and 7,500 + 64) are all that the fit sees.  W3 (16 x
(512 + 128) at once) and W6 (32 requests, 16 at a time, log-uniform 32..4,096 + 16..256) are foretold, then measured.
"""

import math
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import engines
from kvasir.claims.result_file import Better, ResultWriter
from kvasir.core.events import RequestFinishedEvent, TokensEvent
from kvasir.core.request import Request
from kvasir.engine.engine import Engine
from kvasir.simulator.calibration import Fit, fit_costs
from kvasir.simulator.engine_probe import probe_engine
from kvasir.simulator.probe_loads import FULL_PROBE, SINGLE_STREAM_PROBE
from kvasir.simulator.report import SimulationReport, make_report
from kvasir.simulator.simulate import SimulationSetup, simulate
from kvasir.simulator.step_cost import FittedStepCost
from kvasir.workload.latency import Distribution, RequestTiming
from kvasir.workload.traces.trace import Trace, TraceRequest

TARGET = 0.15
MEASURES = ("ttft_p50_s", "tpot_p50_s")
NUM_SEATS = 16
POOL = "2GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """(prompt, output) lengths, ``num_clients`` of which are in flight at any time."""

    name: str
    lengths: tuple[tuple[int, int], ...]
    num_clients: int

    def trace(self) -> Trace:
        return Trace(
            name=self.name,
            requests=tuple(
                TraceRequest(request_id=str(i), arrival_s=0.0, num_prompt_tokens=prompt, num_output_tokens=output)
                for i, (prompt, output) in enumerate(self.lengths)
            ),
        )

    def requests(self, run: int) -> list[Request]:
        """Prompts of their own in every run: nothing is in the prefix cache."""
        return [
            engines.request(f"{self.name}-{run}-{i}", prompt, output, seed=10_000 * (run + 1) + i)
            for i, (prompt, output) in enumerate(self.lengths)
        ]


def log_uniform(rng: random.Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def mixed_lengths(count: int) -> tuple[tuple[int, int], ...]:
    rng = random.Random(6)
    return tuple((log_uniform(rng, 32, 4096), log_uniform(rng, 16, 256)) for _ in range(count))


FORETOLD = (
    Workload(name="W3", lengths=((512, 128),) * 16, num_clients=16),
    Workload(name="W6", lengths=mixed_lengths(32), num_clients=NUM_SEATS),
)


def play(engine: Engine, workload: Workload, run: int) -> list[RequestTiming]:
    """A closed loop in this process; times as the caller of the engine sees them."""
    waiting = deque(workload.requests(run))
    sent_s: dict[str, float] = {}
    first_s: dict[str, float] = {}
    timings: list[RequestTiming] = []

    def send() -> None:
        request = waiting.popleft()
        sent_s[request.request_id] = time.perf_counter()
        engine.add_request(request)

    for _ in range(min(workload.num_clients, len(waiting))):
        send()
    while engine.has_work:
        events = engine.step()
        now_s = time.perf_counter()
        for event in events:
            if isinstance(event, TokensEvent):
                first_s.setdefault(event.request_id, now_s)
            elif isinstance(event, RequestFinishedEvent):
                began_s = sent_s[event.request_id]
                ttft_s = first_s[event.request_id] - began_s
                timings.append(RequestTiming(ttft_s, now_s - began_s, event.num_output_tokens))
                if waiting:
                    send()
    return timings


def foretell(engine: Engine, cost: FittedStepCost, workload: Workload) -> SimulationReport:
    setup = SimulationSetup(
        cost=cost,
        num_blocks=engine.num_blocks,
        max_model_len=engine.max_model_len,
        block_size=engine.layout.block_size,
        scheduler=engine.config.scheduler,
        num_clients=workload.num_clients,
    )
    return make_report(simulate(workload.trace(), setup))


def medians(timings: Sequence[RequestTiming]) -> dict[str, float]:
    ttft = Distribution.of(timing.ttft_s for timing in timings)
    tpot = Distribution.of(tpot for timing in timings if (tpot := timing.tpot_s) is not None)
    assert ttft is not None and tpot is not None
    return {"ttft_p50_s": ttft.median, "tpot_p50_s": tpot.median}


def report_medians(report: SimulationReport) -> dict[str, float]:
    assert report.ttft is not None and report.tpot is not None
    return {"ttft_p50_s": report.ttft.median, "tpot_p50_s": report.tpot.median}


def fit_json(fit: Fit) -> dict[str, object]:
    return {
        "constants": {name: value for name, value in asdict(fit.cost).items() if name != "retention"},
        "median_error": fit.error,
        "median_error_by_load": fit.errors,
        "num_observations": fit.num_observations,
        "num_outliers": fit.num_left_out,
    }


def main() -> int:
    arguments = engines.parser(__doc__, "simulator_vs_engine.json").parse_args()
    ceiling = engines.show_ceiling()
    engine = engines.open_engine(arguments, kv_cache_memory=POOL, max_num_seqs=NUM_SEATS)
    runs = []
    for run in range(arguments.runs):
        runs.append(one_run(engine, run))
        print(f"run {run + 1}: {runs[-1]['off']}", flush=True)
    writer = ResultWriter(path=arguments.output, runs=arguments.runs)
    writer.measurements = {"ceiling": ceiling.as_json(), "engine": engines.describe_engine(engine), "runs": runs}
    for source, target in (("W1 and W2", TARGET), ("full probe", None)):
        for workload in FORETOLD:
            for measure in MEASURES:
                off = statistics.median(one["off"][source][workload.name][measure] for one in runs)
                writer.claim(
                    f"simulated {workload.name} {measure.removesuffix('_s').replace('_', ' ')}, off the engine's own "
                    f"(step costs fitted on {source})",
                    abs(off),
                    "of 1",
                    better=Better.LOWER,
                    target=target,
                )
    for claim in writer.claims:
        print(f"{claim.name}: {claim.value:.3f}")
    print(f"written: {writer.write()}")
    return 0


def one_run(engine: Engine, run: int) -> dict[str, Any]:
    """Probes before and after what they foretell: a machine that changes its pace changes it for both."""
    single = probe_engine(engine, SINGLE_STREAM_PROBE, seconds=0.0)
    every = probe_engine(engine, FULL_PROBE, seconds=0.0)
    measured = {}
    for workload in FORETOLD:
        engine.reset_prefix_cache()
        measured[workload.name] = medians(play(engine, workload, run))
    single += probe_engine(engine, SINGLE_STREAM_PROBE, seconds=0.0)
    every += probe_engine(engine, FULL_PROBE, seconds=0.0)
    fits = {"W1 and W2": fit_costs(single), "full probe": fit_costs(every)}
    foretold = {
        source: {workload.name: report_medians(foretell(engine, fit.cost, workload)) for workload in FORETOLD}
        for source, fit in fits.items()
    }
    off = {
        source: {
            name: {measure: guess[measure] / measured[name][measure] - 1.0 for measure in MEASURES}
            for name, guess in guesses.items()
        }
        for source, guesses in foretold.items()
    }
    fitted = {source: fit_json(fit) for source, fit in fits.items()}
    return {"fits": fitted, "measured": measured, "foretold": foretold, "off": off}


if __name__ == "__main__":
    sys.exit(main())
