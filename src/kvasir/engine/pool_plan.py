"""The KV pool a configuration leads to, before it is allocated: ``kvasir serve`` and ``kvasir plan`` both ask here."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvasir.core.errors import ConfigError
from kvasir.engine.config import CacheConfig, EngineConfig
from kvasir.engine.head_profile import profile_of
from kvasir.engine.memory import MemoryLimits, MemoryNeeds, MemoryPlan, plan_memory, working_memory_bytes
from kvasir.kernels.choice import KernelChoice
from kvasir.kv.allocation import check_allocation
from kvasir.kv.format_pair import FormatPair
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVLayout
from kvasir.kv.prompt_eviction import check_eviction
from kvasir.kv.sparse_read import check_sparse_read
from kvasir.models.config import ModelConfig

LayoutChange = Callable[[KVLayout], KVLayout]
"""From the layout a configuration leads to, to another of the same model: how a measurement makes its controls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """``config`` has no field of cache or context left to 'auto'.  ``memory.pool_bytes`` is what will be allocated."""

    config: EngineConfig
    layout: KVLayout
    max_model_len: int
    weights_bytes: int
    working_bytes: int
    memory: MemoryPlan


def plan_pool(
    model: ModelConfig,
    config: EngineConfig,
    weights_bytes: int,
    limits: MemoryLimits,
    alter_layout: LayoutChange | None = None,
) -> PoolPlan:
    """Context, layout and number of blocks of each group.  Raises ``ConfigError`` when they cannot be had.

    ``weights_bytes`` is what the weights take or will take; ``limits`` are those from before they were loaded.
    ``alter_layout`` is for measurements.
    """
    check_cache(config.cache)
    max_model_len = effective_max_model_len(config, model)
    cache = config.cache
    if cache.head_profile is None:
        cache = replace(
            cache,
            kv_cache_dtype=cache.kv_cache_dtype or auto_kv_dtype(config.kernels),
            kv_retention=cache.kv_retention.rounded(cache.block_size),
        )
    layout = make_layout(model, cache, config.kernels)
    if alter_layout is not None:
        layout = alter_layout(layout)
    check_eviction(cache.eviction, layout, cache.allocation)
    check_sparse_read(cache.sparse_read, layout)
    needs = MemoryNeeds(
        layout=layout,
        max_model_len=max_model_len,
        weights_bytes=weights_bytes,
        working_bytes=working_memory_bytes(model, config.scheduler),
    )
    return PoolPlan(
        config=replace(config, max_model_len=max_model_len, cache=cache),
        layout=layout,
        max_model_len=max_model_len,
        weights_bytes=weights_bytes,
        working_bytes=needs.working_bytes,
        memory=plan_memory(limits, needs, cache, config.scheduler),
    )


def check_cache(cache: CacheConfig) -> None:
    """Refuse before the model is loaded what the manager would refuse after."""
    profile = profile_of(cache)
    retentions = [cache.kv_retention] if profile is None else [group.retention for group in profile.groups]
    check_allocation(cache.allocation, enable_prefix_caching=cache.enable_prefix_caching, retentions=retentions)


def auto_kv_dtype(kernels: KernelChoice) -> FormatPair:
    """What ``--kv-cache-dtype auto`` means: int8 where attention runs on it in integers, which the compiled kernels do;
    else 16 bits with the range of fp32, so that no model can overflow it."""
    dtype = KVDtype.INT8 if kernels.is_compiled else KVDtype.BF16
    return FormatPair(k=dtype, v=dtype)


def make_layout(model: ModelConfig, cache: CacheConfig, kernels: KernelChoice = KernelChoice.AUTO) -> KVLayout:
    """Raises ``ConfigError`` when a head profile cannot be read or is for other heads."""
    profile = profile_of(cache)
    if profile is not None:
        profile.check_geometry(model.geometry)
    formats = cache.kv_cache_dtype or auto_kv_dtype(kernels)
    return KVLayout.from_geometry(
        model.geometry,
        block_size=cache.block_size,
        k_dtype=formats.k,
        v_dtype=formats.v,
        retention=cache.kv_retention,
        has_bounds=cache.sparse_read is not None,
        head_groups=None if profile is None else profile.groups,
    )


def effective_max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    """The context that is served: the model's own, or what was asked for, up to what its RoPE scaling was made for.

    Raises ``ConfigError`` when more is asked for than that.
    """
    most = model.max_context
    asked = config.max_model_len
    if asked is None:
        return model.max_position_embeddings
    if asked < 1:
        raise ConfigError(f"--max-model-len must be at least 1, got {asked}.")
    if asked > most:
        raise ConfigError(f"--max-model-len {asked} is more than the model's longest context of {most} tokens.")
    return asked
