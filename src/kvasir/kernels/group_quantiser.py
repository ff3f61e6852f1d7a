"""Rows to 4-bit codes, a scale and a zero point for each group of channels.

Every step is in fp32 and in a fixed order, so that the compiled kernels make the same bits.
"""

import torch
from torch import Tensor

from kvasir.kernels.quantiser import SMALLEST_ROW

MAX_CODE = 15
_BF16_STEP = 0xFFFF
"""What a bf16 leaves of an fp32's bits, all ones."""


def quantise_groups(rows: Tensor, group: int, feedback: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """``rows`` [..., h, D] fp32 to (codes uint8 [..., h, D], scales bf16 [..., h, G], zeros bf16 [..., h, G]).

    value = code * scale + zero.  The zero point is the group's smallest value rounded down to bf16, the scale a
    fifteenth of what lies above it, rounded up: nothing is cut off.  A group with a non-finite value (or a range beyond
    fp32) has scale and zero point NaN; one whose scale is below 2^-116 has scale 0 and codes 0.

    ``feedback`` [h, D, D] shapes the rounding error (Gray and Neuhoff's noise shaping; "adaptive rounding" where
    weights are quantised): channels are coded from the last to the first, and the error of channel i is made up for by
    the channels before it, channel j by ``feedback[i, j]`` times that error.  Where it comes from: ``key_feedback``.
    """
    groups = rows.unflatten(-1, (-1, group))
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    zeros = _to_bf16(low, up=False)
    scales = _to_bf16((high - zeros) / MAX_CODE, up=True)
    is_bad = ~(low.isfinite() & high.isfinite() & scales.isfinite())
    is_flat = scales < SMALLEST_ROW
    inverse = (1.0 / scales).masked_fill(is_flat, 0.0)
    scales = scales.masked_fill(is_flat, 0.0)
    each_zero, each_scale, each_inverse, is_lost = (
        part[..., None].expand(groups.shape).flatten(-2) for part in (zeros, scales, inverse, is_bad)
    )
    codes = _codes(rows, each_zero, each_scale, each_inverse, feedback).masked_fill(is_lost, 0.0)
    zeros, scales = (part.masked_fill(is_bad, float("nan")).to(torch.bfloat16) for part in (zeros, scales))
    return codes.to(torch.uint8), scales, zeros


def _codes(rows: Tensor, zeros: Tensor, scales: Tensor, inverse: Tensor, feedback: Tensor | None) -> Tensor:
    if feedback is None:
        return torch.round((rows - zeros) * inverse).clamp(0, MAX_CODE)
    codes, wanted = torch.empty_like(rows), rows.clone()
    for channel in range(rows.shape[-1] - 1, -1, -1):
        code = torch.round((wanted[..., channel] - zeros[..., channel]) * inverse[..., channel]).clamp(0, MAX_CODE)
        error = code * scales[..., channel] + zeros[..., channel] - rows[..., channel]
        codes[..., channel] = code
        wanted -= error[..., None] * feedback[:, channel]
    return codes


def _to_bf16(values: Tensor, *, up: bool) -> Tensor:
    """The nearest bf16 above or below, as fp32.  Non-finite values stay so."""
    bits = values.contiguous().view(torch.int32)
    is_away = (bits >= 0) if up else (bits < 0)
    moved = torch.where(is_away, bits + _BF16_STEP, bits) & ~_BF16_STEP
    return torch.where(values.isfinite(), moved.view(torch.float32), values)
