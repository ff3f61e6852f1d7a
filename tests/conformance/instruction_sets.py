"""Which instruction sets the compiled kernels run with on this machine."""

from kvasir.kernels.cpu.kernels import CpuKernels


def runnable_isas() -> list[str]:
    def runs(isa: str) -> bool:
        try:
            CpuKernels(1, isa=isa)
        except ValueError:
            return False
        return True

    return [isa for isa in ("avx512vnni", "avx512", "avxvnni", "avx2", "neondot", "neon", "plain") if runs(isa)]
