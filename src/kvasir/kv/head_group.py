"""``HeadGroup``: heads that a profile wants kept alike; a layout is made of them."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvasir.core.errors import ConfigError
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.retention import FULL, Retention

Head = tuple[int, int]
"""(layer, KV head) of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadGroup:
    """``heads`` in any order.  FULL retention means "as the model has it": a layer with a window of its own keeps that.
    WINDOW sinks and windows need not be whole blocks."""

    heads: tuple[Head, ...]
    retention: Retention = FULL
    k_dtype: KVDtype
    v_dtype: KVDtype


def all_heads(num_layers: int, num_kv_heads: int) -> tuple[Head, ...]:
    return tuple((layer, head) for layer in range(num_layers) for head in range(num_kv_heads))


def check_partition(groups: Iterable[HeadGroup], num_layers: int, num_kv_heads: int) -> None:
    """Raise ``ConfigError`` unless every (layer, KV head) of the model is in exactly one group."""
    seen: set[Head] = set()
    for group in groups:
        for layer, head in group.heads:
            if not (0 <= layer < num_layers and 0 <= head < num_kv_heads):
                raise ConfigError(
                    f"The head groups name KV head {head} of layer {layer}, but the model has {num_layers} layers "
                    f"with {num_kv_heads} KV heads."
                )
            if (layer, head) in seen:
                raise ConfigError(f"The head groups name KV head {head} of layer {layer} twice; each belongs to one.")
            seen.add((layer, head))
    missing = [pair for pair in all_heads(num_layers, num_kv_heads) if pair not in seen]
    if missing:
        layer, head = missing[0]
        raise ConfigError(
            f"The head groups leave out {len(missing)} of the model's {num_layers * num_kv_heads} KV heads, for "
            f"example head {head} of layer {layer}; every one belongs to a group."
        )
