"""Which implementation runs the kernels, and how many threads it may use."""

import torch

from kvasir.core.errors import ConfigError
from kvasir.kernels.choice import KernelChoice
from kvasir.kernels.interface import Kernels
from kvasir.kernels.reference import ReferenceKernels


def make_kernels(choice: KernelChoice, threads: int, *, own_threads: bool | None = None) -> Kernels:
    """The kernels of ``choice``; torch's own products are told to use the same ``threads``.

    AUTO takes the compiled kernels and falls back to the reference where they were not built; CPU refuses instead.
    ``own_threads`` False makes the kernels run on torch's threads: for weights whose products torch computes.
    """
    if threads < 1:
        raise ConfigError(f"the kernels need at least 1 thread, got {threads}.")
    torch.set_num_threads(threads)
    if choice is KernelChoice.REFERENCE:
        return ReferenceKernels()
    try:
        from kvasir.kernels.cpu.kernels import CpuKernels
    except ImportError as error:
        if choice is KernelChoice.CPU:
            raise ConfigError(
                f"the compiled kernels are not built ({error}); run `pip install -e .` or use --kernels reference."
            ) from error
        return ReferenceKernels()
    return CpuKernels(threads, own_threads=own_threads)
