"""The partition of all (layer, kv_head) pairs of a model into groups: ``KVLayout``."""

import hashlib
from dataclasses import dataclass
from typing import Self

from kvasir.core.errors import ConfigError
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.head_group import Head, HeadGroup, check_partition
from kvasir.kv.retention import FULL, Retention, RetentionKind, sliding
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
    """Groups in a fixed order; ``group_id`` is the index.  Every (layer, kv_head) pair is in exactly one group.

    ``constants_digest`` names the calibrated constants that the formats encode with; empty where there are none.
    """

    groups: tuple[KVSpec, ...]
    num_layers: int
    num_kv_heads: int
    constants_digest: str = ""

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
    def from_geometry(
        cls,
        geometry: KVGeometry,
        *,
        block_size: int,
        k_dtype: KVDtype,
        v_dtype: KVDtype,
        retention: Retention = FULL,
        head_groups: tuple[HeadGroup, ...] | None = None,
        has_bounds: bool = False,
    ) -> Self:
        """Heads with equal rule and formats form one group; groups come in the order in which their rules appear.

        ``retention`` (FULL or WINDOW) is for layers without a window of their own; those keep the model's SLIDING.
        ``head_groups`` say it for every head instead, formats included, and then stand for all three arguments.
        ``has_bounds``: FULL groups keep bounds of each block's keys, which sparse reading needs.
        WINDOW is rounded up to whole blocks.  Raises ``ConfigError`` when the groups are no partition of the heads, or
        when WINDOW is asked for where the model has a window.
        """
        if block_size not in BLOCK_SIZES:
            raise ConfigError(
                f"block size {block_size} is not supported; use one of {', '.join(map(str, BLOCK_SIZES))}."
            )
        if head_groups is None:
            head_groups = _whole_layers(geometry, retention, k_dtype, v_dtype)
        check_partition(head_groups, geometry.num_layers, geometry.num_kv_heads)
        rules: dict[_Rule, list[Head]] = {}
        for group in head_groups:
            for layer, head in group.heads:
                rule = _rule(group.retention, geometry.sliding_windows[layer], layer).rounded(block_size)
                rules.setdefault((rule, group.k_dtype, group.v_dtype), []).append((layer, head))
        groups = tuple(
            KVSpec(
                block_size=block_size,
                head_dim=geometry.head_dim,
                heads_by_layer=_by_layer(heads, geometry.num_layers),
                k_dtype=k_dtype,
                v_dtype=v_dtype,
                retention=rule,
                has_bounds=has_bounds and rule.kind is RetentionKind.FULL,
            )
            for (rule, k_dtype, v_dtype), heads in rules.items()
        )
        return cls(groups=groups, num_layers=geometry.num_layers, num_kv_heads=geometry.num_kv_heads)

    @property
    def block_size(self) -> int:
        return self.groups[0].block_size

    @property
    def head_dim(self) -> int:
        return self.groups[0].head_dim

    @property
    def bytes_per_token(self) -> float:
        """Bytes one more token costs while no window has filled: the sum over groups."""
        return sum(spec.bytes_per_token for spec in self.groups)

    @property
    def digest(self) -> str:
        """Names the layout: equal digests mean that blocks of one can be read as blocks of the other."""
        constants = (self.constants_digest,) if self.constants_digest else ()
        text = repr((self.num_layers, self.num_kv_heads, [_describe(spec) for spec in self.groups], *constants))
        return hashlib.sha256(text.encode()).hexdigest()


_Rule = tuple[Retention, KVDtype, KVDtype]


def _whole_layers(
    geometry: KVGeometry, retention: Retention, k_dtype: KVDtype, v_dtype: KVDtype
) -> tuple[HeadGroup, ...]:
    """One rule for every layer that has no window of its own.  Raises ``ConfigError`` when there is none."""
    if retention.kind is RetentionKind.WINDOW and None not in geometry.sliding_windows:
        windows = sorted({window for window in geometry.sliding_windows if window is not None})
        raise ConfigError(
            f"Retention {retention} is for layers with full attention, but every layer of the model has a window of "
            f"its own ({', '.join(map(str, windows))} tokens); use full, which keeps the model's windows."
        )
    return tuple(
        HeadGroup(
            heads=tuple((layer, head) for head in range(geometry.num_kv_heads)),
            retention=retention if window is None else FULL,
            k_dtype=k_dtype,
            v_dtype=v_dtype,
        )
        for layer, window in enumerate(geometry.sliding_windows)
    )


def _rule(asked: Retention, own_window: int | None, layer: int) -> Retention:
    if own_window is None:
        return asked
    if asked.kind is not RetentionKind.FULL:
        raise ConfigError(
            f"Retention {asked} is asked for a head of layer {layer}, which has a window of its own "
            f"({own_window} tokens); ask for full there, which keeps the model's window."
        )
    return sliding(own_window)


def _by_layer(heads: list[Head], num_layers: int) -> tuple[tuple[int, ...], ...]:
    by_layer: list[list[int]] = [[] for _ in range(num_layers)]
    for layer, head in heads:
        by_layer[layer].append(head)
    return tuple(tuple(sorted(layer)) for layer in by_layer)


def _describe(spec: KVSpec) -> tuple[object, ...]:
    return (
        spec.block_size,
        spec.head_dim,
        spec.heads_by_layer,
        spec.k_dtype.value,
        spec.v_dtype.value,
        spec.retention.kind.value,
        spec.retention.window,
        spec.retention.sinks,
        *(("bounds",) if spec.has_bounds else ()),
    )
