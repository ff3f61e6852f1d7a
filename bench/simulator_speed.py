"""How long an hour of recorded chat takes to simulate on one core: hit rates alone, and every step of a fleet."""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kvasir.claims.result_file import Better, ResultWriter
from kvasir.hardware.cards import find_card
from kvasir.planner.kv_groups import StoreFormat
from kvasir.planner.sources import find_model_card
from kvasir.planner.speed import GPU_SERVER
from kvasir.planner.weight_formats import find_weight_format
from kvasir.scheduling.config import SchedulerConfig
from kvasir.simulator.cache_replay import replay_cache
from kvasir.simulator.deployment import device_cost, pool_blocks
from kvasir.simulator.eviction import EvictionPolicy
from kvasir.simulator.outcome import SimulationResult
from kvasir.simulator.report import make_report
from kvasir.simulator.routing import FleetShape, Routing
from kvasir.simulator.simulate import SimulationSetup, simulate
from kvasir.workload.traces.read import read_trace
from kvasir.workload.traces.trace import Trace

Result = TypeVar("Result")

RESULTS = Path(__file__).parent / "results"
TARGET_S = 20.0
REPLAY_BLOCKS = 7_639
NUM_INSTANCES = 8
KV_BYTES = 50 << 30
MODEL, DEVICE = "meta-llama/Llama-3.1-8B-Instruct", "H100-SXM"


def deployment(trace: Trace) -> SimulationSetup:
    """Eight H100 with an 8B model each: about what this hour of traffic needs."""
    shape = find_model_card(MODEL)
    assert shape is not None
    form = StoreFormat(block_size=trace.hash_block_size)
    scheduler = SchedulerConfig(max_num_batched_tokens=8192, max_num_seqs=256)
    cost = device_cost(shape, find_weight_format("bf16"), form, find_card(DEVICE), GPU_SERVER)
    return SimulationSetup(
        cost=cost,
        num_blocks=pool_blocks(cost, KV_BYTES, shape.max_context, scheduler),
        max_model_len=shape.max_context,
        block_size=trace.hash_block_size,
        scheduler=scheduler,
        fleet=FleetShape(num_instances=NUM_INSTANCES, routing=Routing.PREFIX),
    )


def timed(work: Callable[[], Result]) -> tuple[Result, float, float]:
    """What ``work`` gives, its CPU seconds and its wall-clock seconds."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    result = work()
    return result, time.process_time() - cpu_s, time.perf_counter() - wall_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="[default: traces/mooncake_conversation.jsonl in KVASIR_DATA]")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS / "simulator_speed.json")
    arguments = parser.parse_args()
    if arguments.trace is None and "KVASIR_DATA" not in os.environ:
        parser.error("give --trace, or set KVASIR_DATA to the folder that holds traces/.")
    path = arguments.trace or Path(os.environ["KVASIR_DATA"]) / "traces" / "mooncake_conversation.jsonl"

    times: dict[str, list[float]] = {"read": [], "replay": [], "timed": []}
    cpu_times: dict[str, list[float]] = {name: [] for name in times}
    result = SimulationResult()
    trace = read_trace(path)
    for run in range(arguments.runs):
        _, *read_s = timed(lambda: read_trace(path))
        _, *replay_s = timed(lambda: replay_cache(trace, EvictionPolicy.LRU, REPLAY_BLOCKS))
        result, *simulate_s = timed(lambda: simulate(trace, deployment(trace)))
        for name, (cpu_s, wall_s) in zip(times, (read_s, replay_s, simulate_s), strict=True):
            cpu_times[name].append(cpu_s)
            times[name].append(wall_s)
        print(
            f"run {run + 1}: " + ", ".join(f"{name} {values[-1]:.1f} s" for name, values in times.items()), flush=True
        )
    report = make_report(result)
    writer = ResultWriter(path=arguments.output, runs=arguments.runs)
    writer.command = "KVASIR_DATA=<folder with traces/> python bench/simulator_speed.py"
    writer.measurements = {
        "num_requests": len(trace),
        "num_prompt_tokens": trace.num_prompt_tokens,
        "num_output_tokens": trace.num_output_tokens,
        "deployment": f"{NUM_INSTANCES} x {DEVICE}, {MODEL}, prefix routing, blocks of {trace.hash_block_size} tokens",
        "wall_s": times,
        "cpu_s": cpu_times,
        "num_steps": report.num_steps,
        "simulated": report.to_json(),
    }
    rows = (("hit-rate replay", "replay"), (f"timed simulation of {NUM_INSTANCES} instances", "timed"))
    for what, name in rows:
        writer.claim(
            f"{what} of {len(trace):,} recorded requests on one core",
            statistics.median(times[name]),
            "s",
            better=Better.LOWER,
            target=TARGET_S,
        )
    writer.claim("simulated output tokens a second", trace.num_output_tokens / statistics.median(times["timed"]),
                 "tok/s", better=Better.HIGHER)  # fmt: skip
    print(f"written: {writer.write()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
