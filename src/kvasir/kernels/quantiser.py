"""Rows to int8 codes with one scale each: the rule that activations and cached tokens share."""

import torch
from torch import Tensor

SMALLEST_ROW = 2.0**-116
"""A row whose largest magnitude is below this is quantised as zeros: 127 / max would overflow."""


def quantise_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """``rows`` [..., K] fp32 to (codes int8 [..., K], scale fp32 [...]), value = code * scale; see ``Rows``.

    A row of (nearly) zeros has scale 0; a row with a non-finite value has codes 0 and scale NaN.
    """
    largest = rows.abs().amax(dim=-1, keepdim=True)
    is_zero = largest < SMALLEST_ROW
    is_finite = largest.isfinite()
    codes = torch.round(rows * (127.0 / largest)).masked_fill(is_zero | ~is_finite, 0.0)
    scale = (largest / 127.0).masked_fill(is_zero, 0.0).masked_fill(~is_finite, float("nan"))
    return codes.to(torch.int8), scale.squeeze(-1)
