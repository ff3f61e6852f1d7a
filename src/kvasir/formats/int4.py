"""int4: two codes a byte; each 64 (or 32) channels of a token have a scale and a zero point, both bf16.

Before a row is coded, its head's centre is taken off and what is left is rotated (block Hadamard, the largest power
of two that divides D; QuaRot, Ashkboos et al. 2024), so that no channel stands out.  A head has two centres: the usual
one (``k_center``; 0 for V) and that of a sequence's first token (``k_sink``, ``v_sink``), where attention rests and an
error counts many times; a row takes whichever leaves less, and the sign of its first scale says which.  K's rounding
errors are shaped by ``k_feedback``.  With G groups:

K tile uint8 [D / 2 + 4 G, B]: codes [D / 8, B, 4], where byte (i, t, c) holds of token t channel 8 i + c in its low
half and channel 8 i + 4 + c in its high half; then scales bf16 [G, B], then zero points bf16 [G, B].
V tile uint8 [B, D / 2 + 4 G]: codes [B / 4, D / 32, 16, 4], where byte (t, m, l, c) holds of token 4 t + c channel
32 m + l in its low half and channel 32 m + 16 + l in its high half; then scales and zero points as for K.
A byte never holds two tokens, so that tokens can be written side by side.
"""

import torch
from torch import Tensor

from kvasir.kernels.group_quantiser import quantise_groups
from kvasir.kernels.interface import LayerKV
from kvasir.kernels.rotation import hadamard, rotation_size
from kvasir.kv.format_spec import int4_group


class Int4Format:
    """Codes follow ``quantise_groups``: a group with a non-finite value reads as NaN, one of equal values as its zero
    point."""

    def encode_k(self, kv: LayerKV, slots: Tensor, rows: Tensor) -> None:
        codes, scales, zeros = _coded(rows, kv.constants.k_center, kv.constants.k_sink, kv.constants.k_feedback)
        parts = _k_parts(kv)
        block, offset = slots // kv.block_size, slots % kv.block_size
        halves = codes.unflatten(-1, (-1, 2, 4))
        parts.codes[block, :, :, offset] = halves[..., 0, :] | halves[..., 1, :] << 4
        parts.scales[block, :, :, offset] = scales
        parts.zeros[block, :, :, offset] = zeros

    def encode_v(self, kv: LayerKV, slots: Tensor, rows: Tensor) -> None:
        codes, scales, zeros = _coded(rows, None, kv.constants.v_sink, None)
        parts = _v_parts(kv)
        block, offset = slots // kv.block_size, slots % kv.block_size
        halves = codes.unflatten(-1, (-1, 2, 16))
        parts.codes[block, :, offset // 4, :, :, offset % 4] = halves[..., 0, :] | halves[..., 1, :] << 4
        parts.scales[block, :, :, offset] = scales
        parts.zeros[block, :, :, offset] = zeros

    def decode_k(self, kv: LayerKV, blocks: Tensor) -> Tensor:
        parts = _k_parts(kv)
        codes = parts.codes[blocks]
        # [n, h, D / 8, B, 4] twice -> [n, h, B, D / 8, 2, 4]
        halves = torch.stack([codes & 15, codes >> 4], dim=-2).permute(0, 1, 3, 2, 4, 5)
        return _values(halves.flatten(3), parts, blocks, kv.constants.k_center, kv.constants.k_sink)

    def decode_v(self, kv: LayerKV, blocks: Tensor) -> Tensor:
        parts = _v_parts(kv)
        codes = parts.codes[blocks]
        # [n, h, B / 4, D / 32, 16, 4] twice -> [n, h, B / 4, 4, D / 32, 2, 16]
        halves = torch.stack([codes & 15, codes >> 4], dim=-3).permute(0, 1, 2, 6, 3, 4, 5)
        return _values(halves.flatten(4).flatten(2, 3), parts, blocks, None, kv.constants.v_sink)


class _Parts:
    """Views of one tile tensor: codes shaped as asked for, scales and zeros bf16 [n, h, G, B]."""

    def __init__(self, kv: LayerKV, tile: Tensor, code_shape: tuple[int, ...]) -> None:
        size, dim = kv.block_size, kv.head_dim
        flat = tile.flatten(2)
        num_codes, num_groups = dim * size // 2, dim // int4_group(dim)
        self.codes = flat[..., :num_codes].unflatten(-1, code_shape)
        metadata = flat[..., num_codes:].view(torch.bfloat16).unflatten(-1, (2, num_groups, size))
        self.scales, self.zeros = metadata.unbind(2)


def _k_parts(kv: LayerKV) -> _Parts:
    return _Parts(kv, kv.k[0], (kv.head_dim // 8, kv.block_size, 4))


def _v_parts(kv: LayerKV) -> _Parts:
    return _Parts(kv, kv.v[0], (kv.block_size // 4, kv.head_dim // 32, 16, 4))


def _coded(
    rows: Tensor, center: Tensor | None, sink: Tensor | None, feedback: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """``rows`` [T, h, D] to codes, scales, zeros; the sign of the first scale is set where ``sink`` was taken off."""
    left = rows if center is None else rows - center
    is_sink = None
    if sink is not None:
        others = rows - sink
        is_sink = others.square().sum(dim=-1) < left.square().sum(dim=-1)
        left = torch.where(is_sink[..., None], others, left)
    codes, scales, zeros = quantise_groups(_rotate(left), int4_group(rows.shape[-1]), feedback)
    if is_sink is not None:
        scales[..., 0] = torch.where(is_sink, -scales[..., 0], scales[..., 0])
    return codes, scales, zeros


def _values(codes: Tensor, parts: _Parts, blocks: Tensor, center: Tensor | None, sink: Tensor | None) -> Tensor:
    """``codes`` [n, h, B, D] to fp32 [h, n * B, D]."""
    scales, zeros = (part[blocks].float().transpose(2, 3) for part in (parts.scales, parts.zeros))
    groups = codes.float().unflatten(-1, (scales.shape[3], -1))
    values = _rotate((groups * scales.abs()[..., None] + zeros[..., None]).flatten(3))
    usual = torch.zeros(()) if center is None else center[:, None]
    if sink is not None:
        usual = torch.where(scales[..., :1].signbit(), sink[:, None], usual)
    return (values + usual).transpose(0, 1).flatten(1, 2)


def _rotate(rows: Tensor) -> Tensor:
    size = rotation_size(rows.shape[-1])
    return (rows.double().unflatten(-1, (-1, size)) @ hadamard(size)).flatten(-2).float()
