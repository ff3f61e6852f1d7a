"""RoPE scaling of a GGUF file as the ``rope_scaling`` entry of a Hugging Face config."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvasir.core.errors import ModelError

if TYPE_CHECKING:
    import numpy as np

_PUBLISHED_LLAMA3 = (8192, 1.0, 4.0)
"""(original context, low, high frequency factor) of every published Llama 3.x."""
_TOLERANCE = 1e-4
_YARN_DEFAULTS = {"beta_fast": 32.0, "beta_slow": 1.0}


def rope_scaling(
    lookup: Callable[..., Any], context: int, theta: float, head_dim: int, rope_freqs: "np.ndarray | None"
) -> dict[str, Any] | None:
    """``lookup(key, default)`` reads the architecture's metadata; ``rope_freqs`` are per-frequency divisors.

    Raises ``ModelError`` for a scaling type or for factors that no config can express.
    """
    kind = lookup("rope.scaling.type", "none")
    factor = float(lookup("rope.scaling.factor", 0.0) or lookup("rope.scale_linear", 0.0) or 1.0)
    if rope_freqs is not None:
        divisors = [float(value) for value in rope_freqs.reshape(-1)]
        if kind != "none" and factor != 1.0:
            raise ModelError(f"The GGUF file has both rope_freqs.weight and {kind} RoPE scaling; only one is served.")
        return llama3_scaling(divisors, theta, head_dim)
    if kind == "yarn":
        return _yarn(lookup, context, factor)
    if kind == "linear" or (kind == "none" and factor != 1.0 and lookup("rope.scale_linear") is not None):
        return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    if kind == "none":
        return None
    raise ModelError(f"GGUF RoPE scaling type {kind!r} is not served; served are none, linear, yarn and rope_freqs.")


def llama3_divisors(
    theta: float, head_dim: int, factor: float, original: float, low: float, high: float
) -> list[float]:
    """What Llama 3 divides its ``head_dim / 2`` inverse frequencies by: 1 above the band, ``factor`` below it."""
    divisors: list[float] = []
    for i in range(head_dim // 2):
        turns = original / (2 * math.pi * theta ** (2 * i / head_dim))  # rotations within the original context
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return divisors


def llama3_scaling(divisors: list[float], theta: float, head_dim: int) -> dict[str, Any] | None:
    """Find the llama3 parameters that give these ``divisors`` (GGUF's rope_freqs.weight), None when all are 1.

    The published parameters are tried first.  Else they are solved for, which needs two frequencies in the blended
    band: there the smoothing is linear in the number of rotations, and as only ratios matter, the original context
    may be the published one.
    """
    if len(divisors) != head_dim // 2:
        raise ModelError(f"rope_freqs.weight has {len(divisors)} values, but heads of {head_dim} need {head_dim // 2}.")
    factor = max(divisors)
    if all(abs(value - 1.0) < _TOLERANCE for value in divisors):
        return None
    for original, low, high in filter(None, (_PUBLISHED_LLAMA3, _solve(divisors, theta, head_dim, factor))):
        candidate = llama3_divisors(theta, head_dim, factor, original, low, high)
        if all(abs(a - b) <= _TOLERANCE * b for a, b in zip(candidate, divisors, strict=True)):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise ModelError("rope_freqs.weight of the GGUF file does not follow the llama3 scaling rule, so it is not served.")


def _solve(divisors: list[float], theta: float, head_dim: int, factor: float) -> tuple[int, float, float] | None:
    """The line through the first and the last frequency strictly inside the band."""
    points: list[tuple[float, float]] = []
    for i, divisor in enumerate(divisors):
        smooth = (1.0 / divisor - 1.0 / factor) / (1.0 - 1.0 / factor)
        if _TOLERANCE < smooth < 1.0 - _TOLERANCE:
            points.append((1.0 / (2 * math.pi * theta ** (2 * i / head_dim)), smooth))
    if len(points) < 2:
        return None
    (x0, y0), (x1, y1) = points[0], points[-1]
    slope = (y1 - y0) / (x1 - x0)
    intercept = y0 - slope * x0
    if slope <= 0 or intercept >= 0:
        return None
    # smooth = (original * x - low) / (high - low)
    original = _PUBLISHED_LLAMA3[0]
    width = original / slope
    low = -intercept * width
    return original, low, low + width


def _yarn(lookup: Callable[..., Any], context: int, factor: float) -> dict[str, Any]:
    if lookup("rope.scaling.yarn_log_multiplier", 0.0):
        raise ModelError("The GGUF file has rope.scaling.yarn_log_multiplier, which is not served.")
    if lookup("rope.scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0):
        raise ModelError("The GGUF file has a rope.scaling.yarn_ext_factor other than 1, which is not served.")
    original = int(lookup("rope.scaling.original_context_length", 0) or round(context / factor))
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
    }
    for name, default in _YARN_DEFAULTS.items():
        scaling[name] = float(lookup(f"rope.scaling.yarn_{name}", default))
    magnitude = lookup("rope.scaling.attn_factor", None) or lookup("rope.scaling.yarn_attn_factor", None)
    if magnitude is not None and magnitude != 1.0:
        # GGUF multiplies YaRN's own magnitude, Hugging Face replaces it.
        scaling["attention_factor"] = float(magnitude) * (0.1 * math.log(factor) + 1.0)
    return scaling
