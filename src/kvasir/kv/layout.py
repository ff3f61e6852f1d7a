"""The partition of all (layer, kv_head) pairs of a model into groups: ``KVLayout``."""

import hashlib
from dataclasses import dataclass
from typing import Self

from kvasir.core.errors import ConfigError
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.retention import FULL, Retention, sliding
from kvasir.kv.spec import BLOCK_SIZES, KVSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGeometry:
    """What the cache needs to know of a model, and no more.

    ``sliding_windows[l]`` is the model's own window of layer l in tokens, None for full attention.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    sliding_windows: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if len(self.sliding_windows) != self.num_layers:
            raise ValueError(f"{len(self.sliding_windows)} windows given for {self.num_layers} layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Groups in a fixed order; ``group_id`` is the index.  Every (layer, kv_head) pair is in exactly one group."""

    groups: tuple[KVSpec, ...]
    num_layers: int
    num_kv_heads: int

    def __post_init__(self) -> None:
        seen: set[tuple[int, int]] = set()
        for spec in self.groups:
            if spec.block_size != self.block_size:
                raise ValueError("all groups share one block size")
            for layer, heads in enumerate(spec.heads_by_layer):
                for head in heads:
                    if (layer, head) in seen:
                        raise ValueError(f"layer {layer} kv head {head} is in two groups")
                    seen.add((layer, head))
        if len(seen) != self.num_layers * self.num_kv_heads:
            raise ValueError(f"{len(seen)} of {self.num_layers * self.num_kv_heads} (layer, kv_head) pairs are covered")

    @classmethod
    def from_geometry(cls, geometry: KVGeometry, *, block_size: int, k_dtype: KVDtype, v_dtype: KVDtype) -> Self:
        """One group per distinct retention rule: FULL layers together, SLIDING layers by window."""
        if block_size not in BLOCK_SIZES:
            raise ConfigError(
                f"block size {block_size} is not supported; use one of {', '.join(map(str, BLOCK_SIZES))}."
            )
        rules: dict[Retention, set[int]] = {}
        for layer, window in enumerate(geometry.sliding_windows):
            rules.setdefault(FULL if window is None else sliding(window), set()).add(layer)
        heads = tuple(range(geometry.num_kv_heads))
        groups = tuple(
            KVSpec(
                block_size=block_size,
                head_dim=geometry.head_dim,
                heads_by_layer=tuple(heads if layer in layers else () for layer in range(geometry.num_layers)),
                k_dtype=k_dtype,
                v_dtype=v_dtype,
                retention=retention,
            )
            for retention, layers in rules.items()
        )
        return cls(groups=groups, num_layers=geometry.num_layers, num_kv_heads=geometry.num_kv_heads)

    @property
    def block_size(self) -> int:
        return self.groups[0].block_size

    @property
    def bytes_per_token(self) -> float:
        """Bytes one more token costs while no window has filled: the sum over groups."""
        return sum(spec.bytes_per_token for spec in self.groups)

    @property
    def digest(self) -> str:
        """Names the layout: equal digests mean that blocks of one can be read as blocks of the other."""
        text = repr((self.num_layers, self.num_kv_heads, [_describe(spec) for spec in self.groups]))
        return hashlib.sha256(text.encode()).hexdigest()


def _describe(spec: KVSpec) -> tuple[object, ...]:
    return (
        spec.block_size,
        spec.head_dim,
        spec.heads_by_layer,
        spec.k_dtype.value,
        spec.v_dtype.value,
        spec.retention.kind.value,
        spec.retention.window,
    )
