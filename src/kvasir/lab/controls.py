"""Controls of settings that choose heads or tokens: the same bytes spent without choosing, which a choice must beat."""

import random
from collections.abc import Sequence
from dataclasses import replace

from kvasir.kv.eviction import EvictionKind, EvictionRule
from kvasir.kv.layout import KVLayout
from kvasir.kv.retention import RetentionKind
from kvasir.kv.spec import KVSpec

Pair = tuple[int, int]
"""(layer, KV head)"""


def eviction_by_lot(rule: EvictionRule | None) -> EvictionRule | None:
    """The floor of a scored eviction: as many tokens, the same ones protected, the others drawn by lot; None where
    nothing is scored."""
    if rule is None or rule.kind is EvictionKind.RANDOM:
        return None
    return replace(rule, kind=EvictionKind.RANDOM)


def has_chosen_heads(layout: KVLayout, model_windows: Sequence[int | None]) -> bool:
    """Full-attention layers of the model have heads in more than one group, so somebody chose between them."""
    return len(_choosing_groups(layout, model_windows)) > 1


def heads_at_random(layout: KVLayout, model_windows: Sequence[int | None], seed: int) -> KVLayout:
    """The same groups with as many heads each, so the same bytes, but which heads is drawn by lot.

    Layers where the model itself has a window stay as they are.
    """
    groups = _choosing_groups(layout, model_windows)
    pairs = sorted(pair for group in groups for pair in _pairs(layout.groups[group], model_windows))
    random.Random(seed).shuffle(pairs)
    specs = list(layout.groups)
    for group in groups:
        num = len(_pairs(specs[group], model_windows))
        kept = [pair for pair in _all_pairs(specs[group]) if model_windows[pair[0]] is not None]
        specs[group] = _with_pairs(specs[group], [*kept, *pairs[:num]])
        pairs = pairs[num:]
    return replace(layout, groups=tuple(specs))


def one_window(layout: KVLayout, model_windows: Sequence[int | None], context: int) -> KVLayout | None:
    """All heads that could be chosen in one group, under the widest window that costs no more bytes at ``context``
    tokens; None when not even a window of two blocks does, or no group has a window to take the rule from."""
    groups = _choosing_groups(layout, model_windows)
    windowed = [group for group in groups if layout.groups[group].retention.kind is not RetentionKind.FULL]
    if not windowed:
        return None
    narrowest = min(windowed, key=lambda group: layout.groups[group].retention.window)
    pairs = sorted(pair for group in groups for pair in _pairs(layout.groups[group], model_windows))
    merged = _with_pairs(layout.groups[narrowest], pairs)
    rest = [spec for group, spec in enumerate(layout.groups) if group not in groups]
    budget = sum(_num_bytes(layout.groups[group], context) for group in groups)
    block = layout.block_size
    best: KVSpec | None = None
    for window in range(2 * block, context + block, block):
        candidate = replace(merged, retention=replace(merged.retention, window=window))
        if _num_bytes(candidate, context) > budget:
            break
        best = candidate
    return None if best is None else replace(layout, groups=(best, *rest))


def _choosing_groups(layout: KVLayout, model_windows: Sequence[int | None]) -> list[int]:
    """Groups that hold heads of full-attention layers."""
    return [group for group, spec in enumerate(layout.groups) if _pairs(spec, model_windows)]


def _pairs(spec: KVSpec, model_windows: Sequence[int | None]) -> list[Pair]:
    return [pair for pair in _all_pairs(spec) if model_windows[pair[0]] is None]


def _all_pairs(spec: KVSpec) -> list[Pair]:
    return [(layer, head) for layer, heads in enumerate(spec.heads_by_layer) for head in heads]


def _with_pairs(spec: KVSpec, pairs: Sequence[Pair]) -> KVSpec:
    heads = [tuple(sorted(head for at, head in pairs if at == layer)) for layer in range(len(spec.heads_by_layer))]
    return replace(spec, heads_by_layer=tuple(heads))


def _num_bytes(spec: KVSpec, context: int) -> int:
    return spec.pool_bytes(spec.max_blocks(context, 1))
