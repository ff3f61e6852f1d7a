"""fp8: e4m3 codes (4 bits of exponent, 3 of mantissa, no infinity), one calibrated scale for all tokens of a head.

Tiles are those of the dense formats, one byte a value: K [D, B], V [B, D].  value = code * scale.
"""

import torch
from torch import Tensor

from kvasir.kernels.interface import LayerKV

LARGEST = 448.0
"""The largest e4m3 value.  Larger ones are cut to it; NaN and infinity become NaN, so that they stay visible."""


class Fp8Format:
    def encode_k(self, kv: LayerKV, slots: Tensor, rows: Tensor) -> None:
        (tile,) = kv.k
        tile[slots // kv.block_size, :, :, slots % kv.block_size] = _codes(rows, _scale(kv.constants.k_scale, "K"))

    def encode_v(self, kv: LayerKV, slots: Tensor, rows: Tensor) -> None:
        (tile,) = kv.v
        tile[slots // kv.block_size, :, slots % kv.block_size] = _codes(rows, _scale(kv.constants.v_scale, "V"))

    def decode_k(self, kv: LayerKV, blocks: Tensor) -> Tensor:
        return _values(kv.k[0][blocks].permute(1, 0, 3, 2), _scale(kv.constants.k_scale, "K"))

    def decode_v(self, kv: LayerKV, blocks: Tensor) -> Tensor:
        return _values(kv.v[0][blocks].transpose(0, 1), _scale(kv.constants.v_scale, "V"))


def _scale(scale: Tensor | None, what: str) -> Tensor:
    if scale is None:
        raise ValueError(f"fp8 {what} has no scales; a store of fp8 is made with calibrated constants")
    return scale


def _codes(rows: Tensor, scale: Tensor) -> Tensor:
    """``rows`` [T, h, D] fp32 to bytes, nearest even."""
    scaled = rows * (1.0 / scale)[:, None]
    cut = scaled.clamp(-LARGEST, LARGEST).masked_fill(~rows.isfinite(), float("nan"))
    return cut.to(torch.float8_e4m3fn).view(torch.uint8)


def _values(codes: Tensor, scale: Tensor) -> Tensor:
    """Bytes [h, n, B, D] to fp32 [h, n * B, D]."""
    return codes.contiguous().view(torch.float8_e4m3fn).float().flatten(1, 2) * scale[:, None, None]
