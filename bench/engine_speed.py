"""Decode speed of one stream and of 16, beside what memory bandwidth allows; and peak memory."""

import statistics
import sys

import engines
from kvasir.claims.result_file import Better, ResultWriter
from kvasir.engine.engine import Engine
from kvasir.workload.driver import play

GIB = 1 << 30
POOL = "1GiB"
PROMPT, OUTPUT = 128, 128
NUM_STREAMS = 16
LONG_PROMPT = 512
ALONE_TARGET, TOGETHER_TARGET = 25.0, 100.0
OVERHEAD_TARGET_GIB = 1.0


def measure(engine: Engine, runs: int) -> dict[str, list[float]]:
    """Each run has prompts of its own, so nothing is in the prefix cache."""
    alone, together, mixed = [], [], []
    for run in range(runs):
        load = play(engine, [engines.request(f"alone-{run}", PROMPT, OUTPUT, seed=run)])
        alone.append(engines.decode_tokens_per_s(load))
        seeds = range(1000 * (run + 1), 1000 * (run + 1) + NUM_STREAMS)
        load = play(engine, [engines.request(f"r{seed}", PROMPT, OUTPUT, seed) for seed in seeds])
        together.append(engines.decode_tokens_per_s(load))
        load = play(engine, [engines.request(f"m{seed}", LONG_PROMPT, OUTPUT, seed + 500) for seed in seeds])
        mixed.append(load.output_tokens_per_s)
        print(f"run {run + 1}: alone {alone[-1]:.1f}, {NUM_STREAMS} together {together[-1]:.1f}, mixed {mixed[-1]:.1f}")
    return {
        "alone_tokens_per_s": alone,
        "together_tokens_per_s": together,
        f"prefill_{LONG_PROMPT}_and_decode_tokens_per_s": mixed,
    }


def fill_pool(engine: Engine) -> None:
    """Prompts until every block of the pool was written once: what nobody touched takes no memory."""
    length = engine.max_model_len // 2
    for number in range(-(-engine.memory.num_tokens // length)):
        play(engine, [engines.request(f"fill-{number}", length, 1, seed=9_000 + number)])


def main() -> int:
    arguments = engines.parser(__doc__, "engine_speed.json").parse_args()
    ceiling = engines.show_ceiling()
    engine = engines.open_engine(arguments, kv_cache_memory=POOL, max_num_seqs=NUM_STREAMS)
    alone_ceiling = ceiling.read_bytes_per_s / engine.weights_bytes
    print(
        f"decode alone reads {engine.weights_bytes / 1e6:.0f} MB of weights a token: at most {alone_ceiling:.0f} tok/s"
    )
    measured = measure(engine, arguments.runs)
    fill_pool(engine)
    peak = engines.peak_memory_bytes()
    alone, together, mixed = (statistics.median(values) for values in measured.values())
    overhead_gib = (peak - engine.weights_bytes - engine.memory.pool_bytes) / GIB

    writer = ResultWriter(path=arguments.output, runs=arguments.runs)
    writer.measurements = {
        "ceiling": ceiling.as_json(),
        "engine": engines.describe_engine(engine),
        "prompt_tokens": PROMPT,
        "output_tokens": OUTPUT,
        "num_streams": NUM_STREAMS,
        **measured,
        "alone_ceiling_tokens_per_s": alone_ceiling,
        "peak_memory_bytes": peak,
    }
    writer.claim("decode, one stream", alone, "tok/s", better=Better.HIGHER, target=ALONE_TARGET)
    writer.claim(
        "decode, one stream, as a share of what bandwidth allows", alone / alone_ceiling, "of 1", better=Better.HIGHER
    )
    writer.claim(
        f"decode, {NUM_STREAMS} streams together", together, "tok/s", better=Better.HIGHER, target=TOGETHER_TARGET
    )
    writer.claim(
        f"{NUM_STREAMS} requests of {LONG_PROMPT} + {OUTPUT} tokens, prefill included",
        mixed,
        "output tok/s",
        better=Better.HIGHER,
    )
    writer.claim(
        "peak memory beyond weights and a full KV pool",
        overhead_gib,
        "GiB",
        better=Better.LOWER,
        target=OVERHEAD_TARGET_GIB,
    )
    print(f"written: {writer.write()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
