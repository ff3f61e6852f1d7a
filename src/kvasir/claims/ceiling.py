"""How fast this machine could be: read bandwidth and multiply-add rates, probed before anything is measured."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

# Larger than any last-level cache in sight, so that the probe reads memory and not cache.
_BUFFER_BYTES = 1 << 30
_MATRIX_SIZE = 1536
_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Best of several rounds with all usable cores.  An operation is one multiply or one add, so an FMA is two."""

    read_bytes_per_s: float
    fp32_ops_per_s: float
    int8_ops_per_s: float

    def describe(self) -> str:
        return (
            f"ceiling: reads {self.read_bytes_per_s / 1e9:.1f} GB/s, fp32 {self.fp32_ops_per_s / 1e9:.0f} GFLOP/s, "
            f"int8 {self.int8_ops_per_s / 1e9:.0f} GOP/s"
        )

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def probe_ceiling() -> Ceiling:
    """Takes about two seconds and one GiB; the memory is given back."""
    import torch

    buffer = torch.ones(_BUFFER_BYTES // 4, dtype=torch.float32)
    read_s = _best_s(buffer.sum)

    size = _MATRIX_SIZE
    floats = torch.rand(size, size)
    fp32_s = _best_s(lambda: floats @ floats)
    codes = torch.randint(-127, 128, (size, size), dtype=torch.int8)
    int8_s = _best_s(lambda: torch._int_mm(codes, codes))  # pyright: ignore[reportPrivateImportUsage]

    num_ops = 2.0 * size**3
    return Ceiling(
        read_bytes_per_s=_BUFFER_BYTES / read_s,
        fp32_ops_per_s=num_ops / fp32_s,
        int8_ops_per_s=num_ops / int8_s,
    )


def _best_s(work: Callable[[], object]) -> float:
    work()
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def probe_ceiling_apart() -> Ceiling:
    """The same in a process of its own, so that the probe's memory is not part of this process's peak."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(probe_ceiling).result()
