"""One zeroed span of memory, on huge pages where the system has them, cut into tensors."""

import contextlib
import mmap
from math import prod

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20


class Arena:
    """``num_bytes`` of private anonymous memory that starts as zeros and is only backed once it is touched.

    Decode reads the whole cache once a step: with 4 KiB pages it waits for the TLB more than for the memory, so the
    span is aligned to 2 MiB and asks for transparent huge pages.  The memory is freed with the last tensor cut from it.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._used = 0
        self._span = (
            _huge_span(num_bytes) if hasattr(mmap, "MAP_ANONYMOUS") else torch.zeros(num_bytes, dtype=torch.uint8)
        )

    def cut(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The next ``shape`` of ``dtype``, directly behind the one before."""
        size = prod(shape) * dtype.itemsize
        if self._used + size > self.num_bytes:
            raise ValueError(f"{size} bytes do not fit behind {self._used} of {self.num_bytes}")
        piece = self._span[self._used : self._used + size]
        self._used += size
        return piece.view(dtype).view(shape)


def _huge_span(num_bytes: int) -> Tensor:
    # Private: a shared anonymous map would be tmpfs memory, which has its own (mostly disabled) huge page switch.
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages answers EINVAL: small pages then, with the same values.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE_BYTES
    return whole[start : start + num_bytes]
