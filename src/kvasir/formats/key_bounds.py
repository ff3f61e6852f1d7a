"""The least and the largest value of each channel of a block's keys: what sparse reading chooses blocks by."""

from dataclasses import fields, replace

import torch
from torch import Tensor

from kvasir.formats.registry import FORMATS
from kvasir.kernels.interface import HeadConstants, LayerKV


def flat_heads(kv: LayerKV) -> tuple[LayerKV, ...]:
    """``kv`` as one head of many blocks (see ``KeyBounds``): what a row and a head chose is a block table over it."""
    flat = replace(
        kv,
        heads=torch.zeros(1, dtype=torch.int32),
        num_kv_heads=1,
        k=tuple(part.flatten(0, 1).unsqueeze(1) for part in kv.k),
        v=tuple(part.flatten(0, 1).unsqueeze(1) for part in kv.v),
        bounds=None,
    )
    given = {field.name: getattr(kv.constants, field.name) for field in fields(kv.constants)}
    if all(tensor is None for tensor in given.values()):
        return (flat,)
    return tuple(
        replace(flat, constants=HeadConstants(**{n: None if t is None else t[i : i + 1] for n, t in given.items()}))
        for i in range(len(kv.heads))
    )


def bound_blocks(kv: LayerKV, blocks: Tensor) -> None:
    """Set the bounds of ``blocks`` int64 [n], all of whose tokens are written, from the keys as they will be read."""
    if kv.bounds is None:
        raise ValueError("a store without bounds was asked to bound its keys")
    keys = FORMATS[kv.k_dtype].decode_k(kv, blocks).unflatten(1, (len(blocks), kv.block_size))
    least, largest = _outward(keys.amin(dim=2), down=True), _outward(keys.amax(dim=2), down=False)
    kv.bounds.tensor[blocks] = torch.stack([least, largest], dim=2).transpose(0, 1)


def _outward(values: Tensor, *, down: bool) -> Tensor:
    """bf16, rounded so that a bound stays one."""
    near = values.to(torch.bfloat16)
    end = torch.tensor(float("-inf" if down else "inf"), dtype=torch.bfloat16)
    is_inside = near.float() > values if down else near.float() < values
    return torch.where(is_inside, torch.nextafter(near, end), near)
