"""Hit rates on the published Mooncake traces, through our own block manager, beside an independent program's."""

import argparse
import csv
import os
import sys
import time
from pathlib import Path

from kvasir.claims.result_file import Better, ResultWriter
from kvasir.simulator.cache_replay import replay_cache
from kvasir.simulator.eviction import EvictionPolicy
from kvasir.workload.traces.read import read_trace
from kvasir.workload.traces.trace import Trace

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
ORACLE = ROOT / "tests" / "trace_oracle_hit_rates.csv"
"""What kvcache-simulator 0.1.3 (KVCache.AI) printed: token-weighted, last half of the requests."""


def check_row(traces: dict[str, Trace], row: dict[str, str]) -> dict[str, object]:
    is_unlimited = row["policy"] == "unlimited"
    policy = EvictionPolicy.LRU if is_unlimited else EvictionPolicy(row["policy"])
    num_blocks = None if is_unlimited else int(row["num_blocks"])
    started_s = time.process_time()
    replay = replay_cache(traces[row["trace"]], policy, num_blocks)
    ours, oracle = replay.hit_rate(0.5), float(row["hit_rate_last_half"])
    return {
        "trace": row["trace"],
        "policy": row["policy"],
        "num_blocks": num_blocks,
        "oracle": oracle,
        "ours": ours,
        "difference": round(ours, 4) - oracle,
        "is_equal": f"{ours:.4f}" == row["hit_rate_last_half"],
        "ours_all_requests": replay.hit_rate(),
        "cpu_s": time.process_time() - started_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, help="folder with the traces [default: traces in KVASIR_DATA]")
    parser.add_argument("--output", type=Path, default=RESULTS / "trace_hit_rates.json")
    arguments = parser.parse_args()
    if arguments.traces is None and "KVASIR_DATA" not in os.environ:
        parser.error("give --traces, or set KVASIR_DATA to the folder that holds traces/.")
    folder = arguments.traces or Path(os.environ["KVASIR_DATA"]) / "traces"

    rows = list(csv.DictReader(ORACLE.read_text().splitlines()))
    traces = {name: read_trace(folder / f"{name}.jsonl") for name in dict.fromkeys(row["trace"] for row in rows)}
    checked = []
    for row in rows:
        checked.append(found := check_row(traces, row))
        mark = "equal" if found["is_equal"] else "DIFFERENT"
        print(
            f"{found['trace']} {found['policy']} {found['num_blocks'] or 'unlimited'}: {found['ours']:.4f}, "
            f"oracle {found['oracle']:.4f}: {mark}",
            flush=True,
        )
    writer = ResultWriter(path=arguments.output)
    writer.command = "KVASIR_DATA=<folder with traces/> python bench/trace_hit_rates.py"
    writer.measurements = {"oracle": "kvcache-simulator 0.1.3", "rows": checked}
    num_equal = sum(bool(found["is_equal"]) for found in checked)
    writer.claim(
        "hit rates on Mooncake traces equal to an independent simulator's to four digits (FIFO, LRU, Belady)",
        num_equal,
        f"of {len(checked)} rows",
        better=Better.HIGHER,
        target=len(checked),
    )
    print(f"written: {writer.write()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
