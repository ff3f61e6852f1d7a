"""Which implementation of the kernels to use."""

from enum import Enum


class KernelChoice(Enum):
    AUTO = "auto"
    """Compiled kernels; the reference where they were not built."""
    CPU = "cpu"
    REFERENCE = "reference"
