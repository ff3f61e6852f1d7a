"""Per-head vectors and scales that number formats want, measured on a text: means, extremes, the first token's rows."""

from collections.abc import Mapping

import torch
from safetensors.torch import load, save
from torch import Tensor

from kvasir.compression.observer import LayerView
from kvasir.core.errors import ConfigError

_LARGEST_E4M3 = 448.0
_SCALE_MARGIN = 1.25
"""Other texts go beyond the largest value of this one; e4m3 keeps its precision under a scale a little too large."""
_SMALLEST_SCALE = 2.0**-60


class ConstantsCollector:
    """Its ``see`` takes every layer of one text (see ``observer``); then ``tensors`` gives, all fp32:

    k_center [L, Hkv, D]: mean of K after RoPE, which int4 takes off (exact under softmax)
    k_sink, v_sink [L, Hkv, D]: K and V of the sequence's first token, where attention rests
    k_scale, v_scale [L, Hkv]: value of one fp8 e4m3 unit that lets the largest magnitude seen fit
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int) -> None:
        vectors = (num_layers, num_kv_heads, head_dim)
        self.tensors = {
            "k_center": torch.zeros(vectors),
            "k_sink": torch.zeros(vectors),
            "v_sink": torch.zeros(vectors),
            "k_scale": torch.zeros(vectors[:2]),
            "v_scale": torch.zeros(vectors[:2]),
        }

    def see(self, view: LayerView) -> None:
        layer = view.layer
        self.tensors["k_center"][layer] = view.k.double().mean(dim=0).float()
        for name, rows in (("k", view.k), ("v", view.v)):
            self.tensors[f"{name}_sink"][layer] = rows[0]
            largest = rows.abs().amax(dim=(0, 2)) * (_SCALE_MARGIN / _LARGEST_E4M3)
            self.tensors[f"{name}_scale"][layer] = largest.clamp_min(_SMALLEST_SCALE)


def constants_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file, tensors in order of their names."""
    return save({name: tensors[name].contiguous() for name in sorted(tensors)})


def constants_from_bytes(data: bytes) -> dict[str, Tensor]:
    """Raises ``ConfigError`` when ``data`` is no safetensors file."""
    try:
        return load(data)
    except Exception as error:
        raise ConfigError(f"The calibrated constants cannot be read ({error}); make the profile anew.") from None
