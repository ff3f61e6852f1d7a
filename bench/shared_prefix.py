"""Sixteen requests that share a 2,000-token system prompt: how much sooner the later ones get their first token."""

import statistics
import sys

import engines
from kvasir.claims.result_file import Better, ResultWriter
from kvasir.engine.engine import Engine
from kvasir.workload.driver import play
from kvasir.workload.prompts import make_token_ids

SHARED, UNIQUE, OUTPUT = 2000, 64, 16
NUM_REQUESTS = 16
TARGET = 0.15


def one_after_another_s(engine: Engine, run: int) -> list[float]:
    """Seconds to the first token of each request, none of them waiting for another."""
    prefix = make_token_ids(SHARED, seed=10_000 + run, first_id=engines.FIRST_ID, last_id=engines.LAST_ID)
    times = []
    for i in range(NUM_REQUESTS):
        name = f"run-{run}-{i}"
        load = play(engine, [engines.request(name, UNIQUE, OUTPUT, seed=100 * run + i, prefix=prefix)])
        times.append(load.ttft_s(name))
    return times


def all_at_once_s(engine: Engine, run: int) -> list[float]:
    """The same when all arrive together and nothing of the prefix is cached yet."""
    prefix = make_token_ids(SHARED, seed=20_000 + run, first_id=engines.FIRST_ID, last_id=engines.LAST_ID)
    names = [f"burst-{run}-{i}" for i in range(NUM_REQUESTS)]
    requests = [
        engines.request(name, UNIQUE, OUTPUT, seed=500_000 + 100 * run + i, prefix=prefix)
        for i, name in enumerate(names)
    ]
    load = play(engine, requests)
    return [load.ttft_s(name) for name in names]


def main() -> int:
    arguments = engines.parser(__doc__, "shared_prefix.json").parse_args()
    ceiling = engines.show_ceiling()
    engine = engines.open_engine(arguments, kv_cache_memory="1GiB")
    turns, bursts = [], []
    for run in range(arguments.runs):
        turns.append(one_after_another_s(engine, run))
        bursts.append(all_at_once_s(engine, run))
        first, later = turns[-1][0], statistics.mean(turns[-1][1:])
        print(f"run {run + 1}: first {first:.3f} s, later {later:.3f} s, share {later / first:.3f}")
    shares = [statistics.mean(times[1:]) / times[0] for times in turns]
    burst_shares = [statistics.mean(times[1:]) / times[0] for times in bursts]

    writer = ResultWriter(path=arguments.output, runs=arguments.runs)
    writer.measurements = {
        "ceiling": ceiling.as_json(),
        "engine": engines.describe_engine(engine),
        "shared_tokens": SHARED,
        "unique_tokens": UNIQUE,
        "num_requests": NUM_REQUESTS,
        "one_after_another_ttft_s": turns,
        "all_at_once_ttft_s": bursts,
    }
    writer.claim(
        f"time to first token of requests 2 to {NUM_REQUESTS} with a shared {SHARED:,}-token prefix, against the first",
        statistics.median(shares),
        "of 1",
        better=Better.LOWER,
        target=TARGET,
    )
    writer.claim(
        "the same when all arrive at once (the later ones wait for the first to compute what they share)",
        statistics.median(burst_shares),
        "of 1",
        better=Better.LOWER,
    )
    print(f"written: {writer.write()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
