"""Per-head vectors and scales that number formats want, measured on a text: means, extremes, the first token's rows."""

from dataclasses import fields

import torch
from safetensors.torch import load, save
from torch import Tensor

from kvasir.compression.observer import LayerView
from kvasir.core.errors import ConfigError
from kvasir.formats.constants import KVConstants
from kvasir.formats.feedback import key_feedback

_LARGEST_E4M3 = 448.0
_SCALE_MARGIN = 1.25
"""Other texts go beyond the largest value of this one; e4m3 keeps its precision under a scale a little too large."""
_SMALLEST_SCALE = 2.0**-60


class ConstantsCollector:
    """Its ``see`` takes every layer of each text (see ``observer``); ``constants`` hold what has been seen so far.

    Texts count by their tokens.  k_center is the mean of K after RoPE; k_sink and v_sink are K and V of a text's first
    token, attention's rest; k_feedback comes from the second moment of the KV head's queries, where int4 K is to be
    made (``has_feedback``); k_scale and v_scale let the largest magnitude seen fit into e4m3, with some room.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, *, has_feedback: bool) -> None:
        heads, vectors = (num_layers, num_kv_heads), (num_layers, num_kv_heads, head_dim)
        self._feedback = torch.zeros(*vectors, head_dim) if has_feedback else None
        self.constants = KVConstants(
            k_center=torch.zeros(vectors),
            k_sink=torch.zeros(vectors),
            v_sink=torch.zeros(vectors),
            k_feedback=self._feedback,
            k_scale=torch.full(heads, _SMALLEST_SCALE),
            v_scale=torch.full(heads, _SMALLEST_SCALE),
        )
        self._found = named_constants(self.constants)
        self._num_texts, self._num_tokens = torch.zeros(2, num_layers, dtype=torch.int64)
        self._k_sum = torch.zeros(vectors, dtype=torch.float64)
        self._q_moment = torch.zeros(*vectors, head_dim, dtype=torch.float64) if has_feedback else None

    def see(self, view: LayerView) -> None:
        layer, found = view.layer, self._found
        self._num_texts[layer] += 1
        self._num_tokens[layer] += len(view.k)
        self._k_sum[layer] += view.k.double().sum(dim=0)
        found["k_center"][layer] = (self._k_sum[layer] / self._num_tokens[layer]).float()
        for name, rows in (("k", view.k), ("v", view.v)):
            sink, scale = found[f"{name}_sink"][layer], found[f"{name}_scale"][layer]
            sink += (rows[0] - sink) / self._num_texts[layer]
            scale.copy_(scale.maximum(rows.abs().amax(dim=(0, 2)) * (_SCALE_MARGIN / _LARGEST_E4M3)))
        if self._feedback is not None and self._q_moment is not None:
            grouped = view.q.double().unflatten(1, (view.k.shape[1], -1)).transpose(0, 1).flatten(1, 2)
            self._q_moment[layer] += grouped.mT @ grouped
            self._feedback[layer] = key_feedback(self._q_moment[layer])


def named_constants(constants: KVConstants) -> dict[str, Tensor]:
    """Those that there are, by name."""
    every = {entry.name: getattr(constants, entry.name) for entry in fields(constants)}
    return {name: tensor for name, tensor in every.items() if tensor is not None}


def constants_to_bytes(constants: KVConstants) -> bytes:
    """A safetensors file, tensors in order of their names."""
    return save({name: tensor.contiguous() for name, tensor in sorted(named_constants(constants).items())})


def constants_from_bytes(data: bytes) -> KVConstants:
    """Raises ``ConfigError`` when ``data`` is no safetensors file, or has a constant that nobody knows."""
    try:
        return KVConstants(**load(data))
    except Exception as error:
        raise ConfigError(f"The calibrated constants cannot be read ({error}); make the profile anew.") from None
