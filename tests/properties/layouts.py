"""Mixtures of retention rules: what models have, and what our own windows by layer and by head make of them."""

from kvasir.kv.format_spec import KVDtype
from kvasir.kv.head_group import HeadGroup
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.retention import FULL, Retention, windowed


def make(
    windows: tuple[int | None, ...],
    retention: Retention = FULL,
    by_head: dict[tuple[int, int], Retention] | None = None,
) -> KVLayout:
    """Two KV heads a layer.  ``by_head``: the rules of some heads; the others are FULL."""
    geometry = KVGeometry(num_layers=len(windows), num_kv_heads=2, head_dim=16, sliding_windows=windows)
    groups = None
    if by_head is not None:
        heads = [(layer, head) for layer in range(len(windows)) for head in range(2)]
        groups = tuple(
            HeadGroup(heads=(head,), retention=by_head.get(head, FULL), k_dtype=KVDtype.FP32, v_dtype=KVDtype.FP32)
            for head in heads
        )
    return KVLayout.from_geometry(
        geometry,
        block_size=16,
        k_dtype=KVDtype.FP32,
        v_dtype=KVDtype.FP32,
        retention=retention,
        head_groups=groups,
    )


SHORT = windowed(sinks=0, window=8)
LONG = windowed(sinks=20, window=40)
MIXTURES: dict[str, KVLayout] = {
    "full": make((None, None)),
    "sliding": make((24, 24)),
    "full and sliding": make((None, 24)),
    "two sliding": make((17, 40)),
    "window": make((None, None), LONG),
    "window without sinks": make((None,), SHORT),
    "full and window": make((None, None), by_head={(0, 1): LONG, (1, 0): LONG}),
    "window and sliding": make((None, 40), SHORT),
    "two windows": make((None, None), by_head={(0, 0): SHORT, (0, 1): LONG, (1, 0): SHORT, (1, 1): LONG}),
    "full, window and sliding": make((None, None, 24), by_head={(0, 1): LONG, (1, 0): SHORT}),
}
