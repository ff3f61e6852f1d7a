"""SGLang's pool: token slots, two pools where layers slide, a separate one for recurrent states."""

from dataclasses import dataclass

from kvasir.core.errors import ConfigError
from kvasir.planner.kv_groups import StoreFormat, kv_groups
from kvasir.planner.model_shape import ModelShape
from kvasir.planner.pool import Pool, Resource

RESERVED_SLOTS = 1
"""Slot 0 takes the writes of padding; it has room but holds no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings:
    """``swa_full_tokens_ratio``: slots of the sliding pool for each slot of the full one.  ``max_running_requests``
    bounds the recurrent states that are kept (0: no such layers)."""

    page_size: int = 1
    chunked_prefill_size: int = 8192
    swa_full_tokens_ratio: float = 0.8
    max_running_requests: int = 0


def sglang_pool(shape: ModelShape, form: StoreFormat, settings: SglangSettings, kv_bytes: int) -> Pool:
    """The pool that ``kv_bytes`` on each device make; recurrent states must have been taken off already."""
    groups = kv_groups(shape, form)
    full_bytes = sum(spec.bytes_per_token for spec in groups if not spec.retention.window)
    sliding_bytes = sum(spec.bytes_per_token for spec in groups if spec.retention.window)
    page = settings.page_size
    if not full_bytes and not sliding_bytes:
        raise ConfigError("The model keeps no KV cache.")
    if not full_bytes or not sliding_bytes:
        num_slots = _paged(kv_bytes / (full_bytes + sliding_bytes), page)
        return _pool(shape, settings, (num_slots,), kv_bytes, (Resource(name="slots", capacity=num_slots, cost=float),))
    ratio = settings.swa_full_tokens_ratio
    full_slots = _paged(kv_bytes / (full_bytes + ratio * sliding_bytes), page)
    sliding_slots = _paged(full_slots * ratio, page)
    window = max(shape.windows)

    def sliding_cost(num_tokens: int) -> int:
        return min(num_tokens, window + settings.chunked_prefill_size)

    resources = (
        Resource(name="full slots", capacity=full_slots, cost=float),
        Resource(name="sliding slots", capacity=sliding_slots, cost=sliding_cost, is_prefix_shared=False),
    )
    return _pool(shape, settings, (full_slots, sliding_slots), kv_bytes, resources)


def _paged(slots: float, page: int) -> int:
    return int(slots) // page * page


def _pool(
    shape: ModelShape, settings: SglangSettings, slots: tuple[int, ...], kv_bytes: int, resources: tuple[Resource, ...]
) -> Pool:
    if slots[0] < 1:
        raise ConfigError(f"{kv_bytes} bytes are left for KV, less than one token of it.")
    return Pool(
        num_bytes=kv_bytes,
        block_size=settings.page_size,
        resources=resources,
        num_blocks=slots,
        printed_tokens=slots[0],
        max_sequences=settings.max_running_requests or None if shape.state_bytes else None,
    )


def static_pool_bytes(total_bytes: int, free_after_load_bytes: int, mem_fraction_static: float) -> int:
    """What ``--mem-fraction-static`` leaves for KV: the rest of the card stays free for activations and graphs."""
    return int(free_after_load_bytes - total_bytes * (1 - mem_fraction_static))
