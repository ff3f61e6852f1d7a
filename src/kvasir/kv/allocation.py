"""How many blocks a sequence reserves: what it needs (paged), or the most it could ever need (contiguous)."""

from enum import Enum


class AllocationKind(Enum):
    PAGED = "paged"
    CONTIGUOUS = "contiguous"
    """Reserve one run of consecutive blocks for max_model_len per sequence: the comparison, not a recommendation."""
