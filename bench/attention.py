"""Attention kernels beside what the machine allows: decode as a share of read bandwidth, prefill of the FMA peak."""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from kvasir.claims.ceiling import probe_ceiling_apart
from kvasir.claims.result_file import Better, ResultWriter
from kvasir.formats.store import KVStore
from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kernels.interface import AttentionPlan, HeadShape, Product
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout

RESULTS = Path(__file__).parent / "results"
BLOCK_SIZE = 16
DECODE_TARGETS = {KVDtype.BF16: 0.75, KVDtype.INT8: 0.5}
PREFILL_TARGET, SPEEDUP_TARGET = 0.65, 2.5
GEOMETRY = KVGeometry(num_layers=30, num_kv_heads=3, head_dim=64, sliding_windows=(None,) * 30)
SHAPE = HeadShape(9, 3, 64)
SCALE = 64**-0.5


@dataclass
class Case:
    """Sequences of ``context`` tokens of which the last ``new`` are queries, in a store of its own."""

    dtype: KVDtype
    num_sequences: int
    context: int
    new: int
    num_layers: int

    def __post_init__(self) -> None:
        layout = KVLayout.from_geometry(GEOMETRY, block_size=BLOCK_SIZE, k_dtype=self.dtype, v_dtype=self.dtype)
        per_sequence = self.context // BLOCK_SIZE
        num_blocks = self.num_sequences * per_sequence
        self.store = KVStore(layout, (num_blocks,))
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).to(torch.int32)
        self.table = order.view(self.num_sequences, per_sequence)
        self.plan = self._plan(self.new, self.context - self.new)
        self.q = torch.randn(self.num_sequences * self.new, SHAPE.num_heads, SHAPE.head_dim)
        self.out = torch.empty_like(self.q)
        self.num_bytes = self.num_layers * num_blocks * layout.groups[0].block_bytes // GEOMETRY.num_layers
        seen = self.new * (self.context - self.new) + self.new * (self.new + 1) // 2
        self.num_ops = 4.0 * SHAPE.head_dim * SHAPE.num_heads * seen * self.num_sequences * self.num_layers

    def _plan(self, count: int, first: int) -> AttentionPlan:
        positions = torch.arange(first, first + count)
        blocks = self.table[:, positions // BLOCK_SIZE].long()
        return AttentionPlan(
            query_start=torch.arange(self.num_sequences + 1, dtype=torch.int32) * count,
            first_position=torch.full((self.num_sequences,), first, dtype=torch.int32),
            block_table=self.table,
            slots=(blocks * BLOCK_SIZE + positions % BLOCK_SIZE).flatten(),
            block_size=BLOCK_SIZE,
            retention=self.store.layout.groups[0].retention,
        )

    def fill(self, kernels: CpuKernels) -> None:
        """Random rows in every slot of every layer that is read."""
        plan = self._plan(self.context, 0)
        num_tokens = len(plan.slots)
        width = (SHAPE.num_heads + 2 * SHAPE.num_kv_heads) * SHAPE.head_dim
        product = Product(torch.randn(num_tokens, width))
        rope = torch.ones(num_tokens, SHAPE.head_dim // 2), torch.zeros(num_tokens, SHAPE.head_dim // 2)
        for entries in self.store.layers[: self.num_layers]:
            kernels.qkv_write(product, SHAPE, None, rope, [(entries[0][1], plan)])

    def time_s(self, kernels: CpuKernels) -> float:
        start = time.perf_counter()
        for entries in self.store.layers[: self.num_layers]:
            kernels.attend(self.q, entries[0][1], self.plan, SCALE, self.out)
        return time.perf_counter() - start


def measure(cases: dict[str, Case], kernels: CpuKernels, rounds: int) -> dict[str, list[float]]:
    """Seconds of each case, round by round, so that what disturbs one disturbs all."""
    for case in cases.values():
        case.fill(kernels)
        case.time_s(kernels)
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            times[name].append(case.time_s(kernels))
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--isa", help="an instruction set instead of the best one")
    parser.add_argument("--output", type=Path, default=RESULTS / "attention.json")
    arguments = parser.parse_args()
    ceiling = probe_ceiling_apart()
    print(ceiling.describe(), flush=True)
    kernels = CpuKernels(arguments.threads, isa=arguments.isa)
    fma_ops_per_s = kernels.fma_ops_per_s()
    print(
        f"kernels: {kernels.isa}, {arguments.threads} threads, FMA peak {fma_ops_per_s / 1e9:.0f} GFLOP/s", flush=True
    )
    dtypes = (KVDtype.BF16, KVDtype.FP16, KVDtype.INT8)
    decodes = {f"decode 8 x 4096, {d.value}": Case(d, 8, 4096, 1, GEOMETRY.num_layers) for d in dtypes}
    prefills = {f"prefill 1024 behind 3072, {d.value}": Case(d, 1, 4096, 1024, 2) for d in dtypes}
    cases = {**decodes, **prefills}
    times = measure(cases, kernels, arguments.rounds)

    writer = ResultWriter(path=arguments.output, runs=arguments.rounds)
    writer.measurements = {"ceiling": ceiling.as_json(), "isa": kernels.isa, "threads": arguments.threads}
    writer.measurements["fma_ops_per_s"] = fma_ops_per_s
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, case in cases.items():
        seconds = medians[name]
        if name in decodes:
            share, target = case.num_bytes / seconds / ceiling.read_bytes_per_s, DECODE_TARGETS.get(case.dtype)
            what = "of read bandwidth"
        else:
            share, what = case.num_ops / seconds / fma_ops_per_s, "of the fp32 FMA peak"
            target = None if case.dtype is KVDtype.INT8 else PREFILL_TARGET
        print(f"{name}: {seconds * 1e3:.2f} ms, {share:.1%} {what}", flush=True)
        writer.measurements[name] = {"seconds": times[name], "share": share}
        writer.claim(f"{name}, share {what}", share, "of 1", better=Better.HIGHER, target=target)
    bf16, _, int8 = (medians[name] for name in prefills)
    print(f"prefill, int8 over bf16: {bf16 / int8:.2f} x")
    writer.claim("prefill, int8 beside bf16", bf16 / int8, "x", better=Better.HIGHER, target=SPEEDUP_TARGET)
    print(f"written: {writer.write()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
