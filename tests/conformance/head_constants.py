"""Constants of the kind calibration finds, made up: what formats do with them must hold for any."""

import torch

from kvasir.formats.constants import KVConstants
from kvasir.kv.format_spec import KVDtype


def made_up_constants(num_layers: int, num_kv_heads: int, head_dim: int, seed: int = 0) -> KVConstants:
    """Centres of about a key's size, sinks of three times that, feedback as strong as measured ones, fp8 scales."""
    generator = torch.Generator().manual_seed(seed)
    pairs = (num_layers, num_kv_heads)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*pairs, *shape, generator=generator)

    return KVConstants(
        k_center=normal(head_dim),
        k_sink=3 * normal(head_dim),
        k_feedback=(0.2 * normal(head_dim, head_dim)).tril(-1),
        v_sink=3 * normal(head_dim),
        k_scale=0.02 * (1 + torch.rand(pairs, generator=generator)),
        v_scale=0.02 * (1 + torch.rand(pairs, generator=generator)),
    )


def fitting(head_dim: int, *dtypes: KVDtype) -> int:
    """``head_dim``, or the next size that int4 takes where one of ``dtypes`` is int4."""
    return -(-head_dim // 32) * 32 if KVDtype.INT4 in dtypes else head_dim
