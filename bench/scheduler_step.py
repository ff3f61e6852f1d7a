"""What one scheduling step costs with 256 running sequences, without a model: schedule + apply, no torch."""

import argparse
import statistics
import sys
import time
from pathlib import Path

from kvasir.claims.result_file import Better, ResultWriter
from kvasir.core.clock import MonotonicClock
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.core.step import SampledToken, StepPlan, StepResult
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.manager import KVManager, KVManagerConfig
from kvasir.scheduling.config import SchedulerConfig
from kvasir.scheduling.scheduler import Scheduler
from kvasir.workload.prompts import make_token_ids

RESULTS = Path(__file__).parent / "results"
TARGET_MS = 1.0
PROMPT_TOKENS = 256
VOCAB_SIZE = 49152


class EchoExecutor:
    """Computes nothing: answers every plan with a token made from the step's number."""

    def execute(self, plan: StepPlan) -> StepResult:
        tokens = tuple(
            SampledToken(sequence_id, (plan.step_id * 7919 + sequence_id) % VOCAB_SIZE)
            for row in plan.rows
            for sequence_id in row.sample_for
        )
        return StepResult(step_id=plan.step_id, tokens=tokens)


def make_scheduler(num_sequences: int, num_steps: int) -> Scheduler:
    geometry = KVGeometry(num_layers=30, num_kv_heads=3, head_dim=64, sliding_windows=(None,) * 30)
    layout = KVLayout.from_geometry(geometry, block_size=16, k_dtype=KVDtype.FP32, v_dtype=KVDtype.FP32)
    longest = PROMPT_TOKENS + num_steps + 1
    blocks = num_sequences * -(-longest // layout.block_size)
    config = SchedulerConfig(max_num_batched_tokens=8192, max_num_seqs=num_sequences)
    manager = KVManager(KVManagerConfig(layout=layout, num_blocks=(blocks,), max_model_len=8192, max_chunk_tokens=8192))
    scheduler = Scheduler(config, manager, MonotonicClock())
    for i in range(num_sequences):
        scheduler.add(
            Request(
                request_id=f"r{i}",
                prompt_token_ids=make_token_ids(PROMPT_TOKENS, i, first_id=16, last_id=VOCAB_SIZE - 1),
                sampling=SamplingParams(max_tokens=num_steps + 1, ignore_eos=True),
            )
        )
    return scheduler


def decode_step_times_s(num_sequences: int, num_steps: int) -> list[float]:
    """Seconds of schedule + apply for each step in which all sequences decode."""
    scheduler = make_scheduler(num_sequences, num_steps)
    executor = EchoExecutor()
    times: list[float] = []
    while scheduler.has_work:
        start = time.perf_counter()
        plan = scheduler.schedule()
        scheduled = time.perf_counter()
        assert plan is not None
        result = executor.execute(plan)
        executed = time.perf_counter()
        scheduler.apply(result)
        spent = scheduled - start + time.perf_counter() - executed
        if len(plan.rows) == num_sequences and plan.num_tokens == num_sequences:
            times.append(spent)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400, help="decode steps a run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS / "scheduler_step.json")
    arguments = parser.parse_args()

    medians_ms, p99s_ms = [], []
    for run in range(arguments.runs):
        times = sorted(decode_step_times_s(arguments.sequences, arguments.steps))
        medians_ms.append(1000 * statistics.median(times))
        p99s_ms.append(1000 * times[int(0.99 * len(times))])
        print(f"run {run + 1}: {len(times)} steps, median {medians_ms[-1]:.3f} ms, p99 {p99s_ms[-1]:.3f} ms")

    writer = ResultWriter(path=arguments.output, runs=arguments.runs)
    writer.measurements = {
        "num_sequences": arguments.sequences,
        "prompt_tokens": PROMPT_TOKENS,
        "steps_per_run": arguments.steps,
        "median_ms": medians_ms,
        "p99_ms": p99s_ms,
    }
    writer.claim(
        f"scheduler step with {arguments.sequences} running sequences (schedule + apply, median)",
        statistics.median(medians_ms),
        "ms",
        better=Better.LOWER,
        target=TARGET_MS,
    )
    print(f"written: {writer.write()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
