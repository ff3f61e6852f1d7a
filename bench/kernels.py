"""Every kernel but attention beside what the machine allows: products, fused rows, the head's search, sampling.

Attention has a bench of its own (``attention.py``).  Kernels take turns, so that what disturbs one disturbs all.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kvasir.claims.ceiling import Ceiling, probe_ceiling_apart
from kvasir.claims.result_file import Better, ResultWriter
from kvasir.core.sampling import SamplingParams
from kvasir.core.step import SequenceStart
from kvasir.engine.sampler import Sampler
from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kernels.interface import Int8Weights, Product, Rows, RowStyle

RESULTS = Path(__file__).parent / "results"
NUM_LAYERS, HIDDEN, INNER, QKV, VOCAB = 30, 576, 1536, 960, 49152
SHAPES = ((QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * INNER, HIDDEN), (HIDDEN, INNER))
"""[N, K] of a layer of the embedded model: thirty of them and the head leave no cache a chance."""
NUM_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512)
BANDWIDTH_TARGET, OPS_TARGET = 0.75, 0.75
SAMPLED_ROWS = 64
SETTINGS = {
    "plain": {"temperature": 1.0},
    "top-k 40": {"temperature": 1.0, "top_k": 40},
    "top-p 0.95, temperature 0.7": {"temperature": 0.7, "top_p": 0.95},
    "top-p 0.95, temperature 1.5": {"temperature": 1.5, "top_p": 0.95},
    "penalties, greedy": {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.5},
}


@dataclass(frozen=True, slots=True)
class Work:
    """``num_bytes`` read and written at least, ``num_ops`` computed (a multiply-add is two), by one ``call``."""

    call: Callable[[], object]
    num_bytes: float = 0.0
    num_ops: float = 0.0


def codes(*shape: int) -> torch.Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8)


def linear_works(kernels: CpuKernels, head: Int8Weights) -> dict[str, Work]:
    """All products of one step, the head's among them, for each number of rows."""
    layers = [[kernels.pack(codes(*shape)) for shape in SHAPES] for _ in range(NUM_LAYERS)]
    weights = [weight for layer in layers for weight in layer] + [head]
    size = sum(weight.codes.nbytes for weight in weights)

    def product_of(num_rows: int) -> Callable[[], None]:
        rows = {width: Rows(codes(num_rows, width), torch.ones(num_rows)) for width in (HIDDEN, INNER)}
        out = torch.empty(num_rows * VOCAB, dtype=torch.int32)

        def run() -> None:
            for weight in weights:
                into = out[: num_rows * weight.num_columns].view(num_rows, weight.num_columns)
                kernels.multiply(rows[weight.width], weight, into)

        return run

    return {f"linears, {n} rows": Work(product_of(n), size, 2.0 * n * size) for n in NUM_ROWS}


def row_works(kernels: CpuKernels, num_rows: int) -> dict[str, Work]:
    """The fused kernels on rows of the embedded model."""
    x, weight = torch.randn(num_rows, HIDDEN), torch.ones(HIDDEN)
    narrow = Product(torch.randint(-(2**20), 2**20, (num_rows, HIDDEN), dtype=torch.int32), *_scales(num_rows, HIDDEN))
    wide = Product(
        torch.randint(-(2**20), 2**20, (num_rows, 2 * INNER), dtype=torch.int32), *_scales(num_rows, 2 * INNER)
    )
    styles = RowStyle(True, 64), RowStyle(True, 512)
    cells = num_rows * HIDDEN
    return {
        f"norm, rotate, quantise, {num_rows} rows": Work(
            lambda: kernels.norm_rows(x, weight, 1e-5, styles[0]), 5.0 * cells
        ),
        f"rotate, quantise, {num_rows} rows": Work(lambda: kernels.rotate_rows(x, styles[0]), 5.0 * cells),
        f"add, norm, rotate, quantise, {num_rows} rows": Work(
            lambda: kernels.add_norm_rows(x, narrow, weight, 1e-5, styles[0]), 13.0 * cells
        ),
        f"SwiGLU, rotate, quantise, {num_rows} rows": Work(
            lambda: kernels.swiglu_rows(wide, styles[1]), 9.0 * num_rows * INNER
        ),
    }


def _scales(num_rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(num_rows) * 1e-6, torch.rand(width)


def head_works(kernels: CpuKernels, head: Int8Weights, num_rows: int) -> dict[str, Work]:
    """The best token of each row: searched while the product is made, and from stored logits."""
    rows, scale = Rows(codes(num_rows, HIDDEN), torch.rand(num_rows)), torch.rand(VOCAB)
    out = torch.empty(num_rows, VOCAB, dtype=torch.int32)

    def stored() -> None:
        kernels.multiply(rows, head, out)
        logits = torch.zeros(num_rows, VOCAB)
        kernels.add_product(logits, Product(out, rows.scale, scale))
        logits.numpy().argmax(axis=1)

    return {
        f"head, best token, {num_rows} rows": Work(lambda: kernels.best_columns(rows, head, scale, None)),
        f"head, stored and searched, {num_rows} rows": Work(stored),
    }


def sampling_works() -> dict[str, Work]:
    values = np.random.default_rng(0).normal(size=(SAMPLED_ROWS, VOCAB)) * 2.5
    logits = torch.from_numpy(values.astype(np.float32))

    def sample_with(settings: dict[str, float]) -> Callable[[], object]:
        sampler = Sampler(max_num_seqs=SAMPLED_ROWS)
        for i in range(SAMPLED_ROWS):
            sampling = SamplingParams(**settings)  # type: ignore[arg-type]
            sampler.start(
                SequenceStart(
                    sequence_id=i,
                    token_ids=tuple(range(300)),
                    num_prompt_tokens=250,
                    sampling=sampling,
                    eos_token_ids=(0,),
                    index=0,
                )
            )
        return lambda: sampler.sample(range(SAMPLED_ROWS), logits.clone())

    return {f"sampling {SAMPLED_ROWS} rows, {name}": Work(sample_with(s)) for name, s in SETTINGS.items()}


def measure(works: dict[str, Work], rounds: int) -> dict[str, list[float]]:
    """Seconds of each work, round by round.  A call goes before each timed one, as a step goes before each step:
    threads are awake, and the caches hold what it left."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            work.call()
            start = time.perf_counter()
            work.call()
            times[name].append(time.perf_counter() - start)
    return times


def show_ceiling(kernels: CpuKernels) -> Ceiling:
    """What the machine reaches with the library or with the kernels' own instructions, whichever is more."""
    probed, fma = probe_ceiling_apart(), kernels.fma_ops_per_s()
    # An instruction that sums four products of bytes takes the place of a multiply-add.
    dots = 4 * fma if "vnni" in kernels.isa else 0.0
    ceiling = Ceiling(
        read_bytes_per_s=probed.read_bytes_per_s,
        fp32_ops_per_s=max(probed.fp32_ops_per_s, fma),
        int8_ops_per_s=max(probed.int8_ops_per_s, dots),
    )
    print(f"{ceiling.describe()} (library alone: {probed.describe()})")
    print(f"kernels: {kernels.isa}", flush=True)
    return ceiling


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--isa", help="an instruction set instead of the best one")
    parser.add_argument("--output", type=Path, default=RESULTS / "kernels.json")
    arguments = parser.parse_args()

    kernels = CpuKernels(arguments.threads, isa=arguments.isa)
    ceiling = show_ceiling(kernels)
    head = kernels.pack(codes(VOCAB, HIDDEN))
    works = linear_works(kernels, head)
    for num_rows in (1, 16, 512):
        works |= row_works(kernels, num_rows)
    for num_rows in (1, 16, 64):
        works |= head_works(kernels, head, num_rows)
    works |= sampling_works()
    measured = measure(works, arguments.rounds)
    medians = {name: statistics.median(times) for name, times in measured.items()}

    writer = ResultWriter(path=arguments.output, runs=arguments.rounds)
    writer.measurements = {
        "ceiling": ceiling.as_json(),
        "isa": kernels.isa,
        "threads": arguments.threads,
    }
    for name, work in works.items():
        seconds = medians[name]
        shares = {"of_bandwidth": work.num_bytes / seconds / ceiling.read_bytes_per_s} if work.num_bytes else {}
        if work.num_ops:
            shares["of_int8_ops"] = work.num_ops / seconds / ceiling.int8_ops_per_s
        told = ", ".join(f"{share:.1%} {what.replace('_', ' ')}" for what, share in shares.items())
        print(f"{name}: {seconds * 1e3:.3f} ms" + (f", {told}" if told else ""), flush=True)
        writer.measurements[name] = {"seconds": measured[name], **shares}
    add_claims(writer, medians)
    print(f"written: {writer.write()}")
    return 0


def add_claims(writer: ResultWriter, medians: dict[str, float]) -> None:
    few, many = (writer.measurements[f"linears, {n} rows"] for n in (1, 512))
    writer.claim(
        "linear layers, one row, share of read bandwidth",
        few["of_bandwidth"],
        "of 1",
        better=Better.HIGHER,
        target=BANDWIDTH_TARGET,
    )
    writer.claim(
        "linear layers, 512 rows, share of the int8 rate",
        many["of_int8_ops"],
        "of 1",
        better=Better.HIGHER,
        target=OPS_TARGET,
    )
    for num_rows in NUM_ROWS:
        seconds = medians[f"linears, {num_rows} rows"]
        writer.claim(f"linear layers and head, {num_rows} rows", seconds * 1e3, "ms", better=Better.LOWER)
    searched, stored = (medians[f"head, {how}, 64 rows"] for how in ("best token", "stored and searched"))
    writer.claim("best token of 64 rows beside stored logits", searched / stored, "x", better=Better.LOWER, target=1.0)
    for name in SETTINGS:
        seconds = medians[f"sampling {SAMPLED_ROWS} rows, {name}"]
        writer.claim(f"sampling {SAMPLED_ROWS} rows, {name}", seconds * 1e3, "ms", better=Better.LOWER)


if __name__ == "__main__":
    sys.exit(main())
