"""``KVConstants``: what calibration found out about the keys and values of a model's heads, as formats use it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kvasir.core.errors import ConfigError
from kvasir.kernels.interface import HeadConstants
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVLayout
from kvasir.kv.spec import KVSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KVConstants:
    """One entry for every (layer, KV head) of the model, fp32, None where nothing was calibrated.

    ``HeadConstants`` says what each is for; here they are of all layers:

    k_center, k_sink, v_sink [L, Hkv, D]; k_feedback [L, Hkv, D, D]; k_scale, v_scale [L, Hkv], each above 0.

    Blocks encoded with other constants cannot be read, so the layout's digest names those that it uses.
    """

    k_center: Tensor | None = None
    k_sink: Tensor | None = None
    k_feedback: Tensor | None = None
    v_sink: Tensor | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    def of_layer(self, layer: int, heads: tuple[int, ...]) -> HeadConstants:
        """The constants of ``heads`` of ``layer``, in that order."""
        found: dict[str, Tensor | None] = {}
        for field in fields(self):
            tensor: Tensor | None = getattr(self, field.name)
            found[field.name] = None if tensor is None else tensor[layer, list(heads)].float().contiguous()
        return HeadConstants(**found)

    def digest(self, layout: KVLayout) -> str:
        """SHA-256 (hex) of every constant that ``layout`` reads; empty when it reads none."""
        digest, is_used = hashlib.sha256(), False
        for name, uses in _USES.items():
            tensor: Tensor | None = getattr(self, name)
            pairs = [pair for spec in layout.groups if uses(spec) for pair in spec.pairs]
            if tensor is None or not pairs:
                continue
            is_used = True
            layers, heads = zip(*sorted(pairs), strict=True)
            chosen = tensor[list(layers), list(heads)].to(torch.float32).contiguous()
            digest.update(f"{name}{sorted(pairs)}".encode() + chosen.numpy().tobytes())
        return digest.hexdigest() if is_used else ""


_USES: dict[str, Callable[[KVSpec], bool]] = {
    "k_center": lambda spec: spec.k_dtype is KVDtype.INT4,
    "k_sink": lambda spec: spec.k_dtype is KVDtype.INT4,
    "k_feedback": lambda spec: spec.k_dtype is KVDtype.INT4,
    "v_sink": lambda spec: spec.v_dtype is KVDtype.INT4,
    "k_scale": lambda spec: spec.k_dtype is KVDtype.FP8,
    "v_scale": lambda spec: spec.v_dtype is KVDtype.FP8,
}
_NEEDED = frozenset({"k_scale", "v_scale"})


def check_constants(layout: KVLayout, constants: KVConstants | None) -> None:
    """Raises ``ConfigError`` when ``layout`` needs a constant that is missing, or one does not fit or is no number."""
    given = constants or KVConstants()
    for name, uses in _USES.items():
        pairs = [pair for spec in layout.groups if uses(spec) for pair in spec.pairs]
        tensor: Tensor | None = getattr(given, name)
        if not pairs or (tensor is None and name not in _NEEDED):
            continue
        if tensor is None:
            raise ConfigError(_missing(name, len(pairs)))
        dims = {"k_feedback": 2, **dict.fromkeys(_NEEDED, 0)}.get(name, 1)
        shape = (layout.num_layers, layout.num_kv_heads, *(layout.head_dim,) * dims)
        if tensor.shape != shape:
            raise ConfigError(
                f"The calibrated {name} has shape {list(tensor.shape)}, but this model needs {list(shape)}; "
                "calibrate this very model with `kvasir calibrate`."
            )
        bad = [pair for pair in pairs if not _is_usable(name, tensor[pair])]
        if bad and name in _NEEDED:
            raise ConfigError(_missing(name, len(bad)))
        if bad:
            layer, head = bad[0]
            raise ConfigError(f"The calibrated {name} of layer {layer} KV head {head} is not finite; calibrate again.")


def _is_usable(name: str, values: Tensor) -> bool:
    return bool(values.isfinite().all()) and (name not in _NEEDED or bool((values > 0).all()))


def _missing(name: str, count: int) -> str:
    return (
        f"fp8 {name[0].upper()} needs calibrated scales, and those of {count} (layer, KV head) pairs are missing; make "
        "them with `kvasir calibrate MODEL` and give its file as --head-profile, or use int8, which needs none."
    )
