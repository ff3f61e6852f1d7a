"""The implementations under test: every instruction set this machine runs, and the fp64 reference."""

import pytest
from instruction_sets import runnable_isas

from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kernels.reference import ReferenceKernels


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
