"""How weights are held and multiplied."""

from enum import Enum


class WeightDtype(Enum):
    INT8 = "int8"
    """Rotated, one scale per output channel; activations one scale per token; exact integer sums."""
    FP32 = "fp32"
    BF16 = "bf16"
