"""The block Hadamard rotation: the matrix both sides of an integer product are turned by."""

import torch
from torch import Tensor


def hadamard(size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The orthonormal Hadamard matrix [size, size] in Sylvester's order; symmetric, so it is its own inverse."""
    if size < 1 or size & (size - 1):
        raise ValueError(f"a Hadamard rotation needs a power of two, got {size}")
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], dim=1), torch.cat([matrix, -matrix], dim=1)])
    return (matrix / size**0.5).to(dtype)


def rotation_size(row_length: int, largest: int = 512) -> int:
    """The largest power of two, up to ``largest``, that divides ``row_length``: it spreads outliers furthest."""
    return min(row_length & -row_length, largest)
