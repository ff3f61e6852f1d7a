"""int8: one scale per token and KV head; codes interleaved by four, as 8-bit dot products want them.

K tile uint8 [D + 4, B]: first [D / 4, B, 4], four channels of one token side by side, each code + 128 (the dot product
of bytes takes one side unsigned); then the tokens' scales, fp32 [B].
V tile uint8 [B, D + 4]: first [B / 4, D, 4], four tokens of one channel side by side, as signed bytes; then fp32 [B].
"""

import torch
from torch import Tensor

from kvasir.kernels.interface import LayerKV
from kvasir.kernels.quantiser import quantise_rows

_OFFSET = 128


class Int8Format:
    """Codes and scales follow ``quantise_rows``: a row with a non-finite value has scale NaN and reads as NaN."""

    def encode_k(self, kv: LayerKV, slots: Tensor, rows: Tensor) -> None:
        codes, scales = _k_parts(*kv.k)
        block, offset = slots // codes.shape[3], slots % codes.shape[3]
        row_codes, row_scales = quantise_rows(rows)
        stored = (row_codes.to(torch.int16) + _OFFSET).to(torch.uint8)
        codes[block, :, :, offset] = stored.unflatten(-1, (-1, 4))
        scales[block, :, offset] = row_scales

    def encode_v(self, kv: LayerKV, slots: Tensor, rows: Tensor) -> None:
        codes, scales = _v_parts(*kv.v)
        block, offset = slots // scales.shape[2], slots % scales.shape[2]
        row_codes, row_scales = quantise_rows(rows)
        codes[block, :, offset // 4, :, offset % 4] = row_codes
        scales[block, :, offset] = row_scales

    def decode_k(self, kv: LayerKV, blocks: Tensor) -> Tensor:
        codes, scales = (part[blocks] for part in _k_parts(*kv.k))
        # [n, h, D / 4, B, 4] -> [h, n, B, D / 4, 4]
        values = (codes.float() - _OFFSET).permute(1, 0, 3, 2, 4).flatten(3)
        return (values * scales.transpose(0, 1)[..., None]).flatten(1, 2)

    def decode_v(self, kv: LayerKV, blocks: Tensor) -> Tensor:
        codes, scales = (part[blocks] for part in _v_parts(*kv.v))
        # [n, h, B / 4, D, 4] -> [h, n, B / 4, 4, D] -> [h, n, B, D]
        values = codes.float().permute(1, 0, 2, 4, 3).flatten(2, 3)
        return (values * scales.transpose(0, 1)[..., None]).flatten(1, 2)


def _k_parts(tile: Tensor) -> tuple[Tensor, Tensor]:
    """Views: codes uint8 [n, h, D / 4, B, 4] and scales fp32 [n, h, B]."""
    dim, block_size = tile.shape[2] - 4, tile.shape[3]
    flat = tile.flatten(2)
    codes = flat[..., : dim * block_size].unflatten(-1, (dim // 4, block_size, 4))
    return codes, flat[..., dim * block_size :].view(torch.float32)


def _v_parts(tile: Tensor) -> tuple[Tensor, Tensor]:
    """Views: codes int8 [n, h, B / 4, D, 4] and scales fp32 [n, h, B]."""
    block_size, dim = tile.shape[2], tile.shape[3] - 4
    flat = tile.flatten(2)
    codes = flat[..., : dim * block_size].view(torch.int8).unflatten(-1, (block_size // 4, dim, 4))
    return codes, flat[..., dim * block_size :].view(torch.float32)
