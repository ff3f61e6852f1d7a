"""The integer product of the library, for the machines where it is exact."""

from functools import cache

import torch
from torch import Tensor


@cache
def is_exact() -> bool:
    """Whether ``torch._int_mm`` adds up what it should.

    On x86 without an instruction that sums products of bytes in 32 bits, it pairs them in 16 bits and saturates.
    """
    for sign in (1, -1):
        rows, codes = (torch.full((size, 64), 127, dtype=torch.int8) for size in (32, 48))
        if not (torch._int_mm(rows, sign * codes.t()) == sign * 64 * 127 * 127).all():  # pyright: ignore[reportPrivateImportUsage]
            return False
    return True


@cache
def has_matrix_tiles() -> bool:
    """Whether the library runs on tile registers, beside which vector products are slow for many rows."""
    is_supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return is_supported is not None and is_supported() and is_exact()


def multiply_exactly(rows: Tensor, codes: Tensor, out: Tensor) -> None:
    """``out`` int32 [T, N] = ``rows`` int8 [T, K] times ``codes`` int8 [N, K] transposed."""
    if not len(rows):
        return
    if is_exact():
        # The transposed view of [N, K] is up to 1.5 times faster than a [K, N] copy, for 1 row and for 512.
        torch._int_mm(rows, codes.t(), out=out)  # pyright: ignore[reportPrivateImportUsage]
    else:
        out.copy_(rows.double() @ codes.double().t())
