"""The implementations under test: every instruction set this machine runs, and the fp64 reference."""

import pytest

from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kernels.reference import ReferenceKernels


def runnable_isas() -> list[str]:
    def runs(isa: str) -> bool:
        try:
            CpuKernels(1, isa=isa)
        except ValueError:
            return False
        return True

    return [isa for isa in ("avx512", "avx2", "neon", "plain") if runs(isa)]


@pytest.fixture(scope="session", params=runnable_isas())
def each_isa(request: pytest.FixtureRequest) -> CpuKernels:
    """One thread: what more threads change (nothing) has its own tests."""
    return CpuKernels(1, isa=request.param)


@pytest.fixture(scope="session")
def cpu() -> CpuKernels:
    """The kernels as a user gets them, on two threads."""
    return CpuKernels(2)


@pytest.fixture(scope="session")
def reference() -> ReferenceKernels:
    return ReferenceKernels()
