"""Puts an engine together: model folder -> weights -> memory plan -> store -> runner."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvasir.core.executor import Executor
from kvasir.core.progress import Progress
from kvasir.engine.config import EngineConfig, WeightDtype
from kvasir.engine.memory import MemoryLimits, MemoryPlan, available_memory
from kvasir.engine.pool_plan import LayoutChange, check_cache, effective_max_model_len, plan_pool
from kvasir.engine.pool_plan import make_layout as make_layout
from kvasir.kv.layout import KVLayout
from kvasir.kv.manager import KVManager, KVManagerConfig
from kvasir.models.config import ModelConfig, load_config
from kvasir.models.resolve import ModelFolder, resolve_model

if TYPE_CHECKING:
    from kvasir.formats.constants import KVConstants
    from kvasir.formats.store import KVStore
    from kvasir.kernels.interface import Kernels
    from kvasir.models.layers import ModelWeights

KernelsWrapper = Callable[["Kernels", "KVStore"], "Kernels"]
"""(kernels, the engine's store) -> kernels under another name: how a measurement plants a fault that it must find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in memory, which several engines may share: nothing in it changes after loading."""

    folder: ModelFolder
    model_config: ModelConfig
    model_digest: str
    weight_dtype: WeightDtype
    weights: "ModelWeights"


@dataclass(slots=True, kw_only=True)
class EngineParts:
    """Everything ``Engine`` holds.  ``config`` is the effective one: no field of it is left to 'auto'."""

    config: EngineConfig
    folder: ModelFolder
    model_config: ModelConfig
    model_digest: str
    manager: KVManager
    memory: MemoryPlan
    executor: Executor
    kernels_name: str
    weights_bytes: int


def assemble(config: EngineConfig, progress: Progress) -> EngineParts:
    """Load the model and allocate the pool.  Raises ``ConfigError`` or ``ModelError``."""
    check_cache(config.cache)
    folder = resolve_model(config.model, progress)
    model_config = load_config(folder.path)
    effective_max_model_len(config, model_config)
    limits = available_memory()
    return build(load_model(folder, model_config, config.weight_dtype, progress), config, limits)


def load_model(
    folder: ModelFolder, model_config: ModelConfig, weight_dtype: WeightDtype, progress: Progress
) -> LoadedModel:
    from kvasir.models.digest import model_digest
    from kvasir.models.weights import load_weights

    return LoadedModel(
        folder=folder,
        model_config=model_config,
        model_digest=model_digest(folder.path),
        weight_dtype=weight_dtype,
        weights=load_weights(folder.path, model_config, weight_dtype, progress),
    )


def build(
    loaded: LoadedModel,
    config: EngineConfig,
    limits: MemoryLimits,
    *,
    wrap_kernels: KernelsWrapper | None = None,
    alter_layout: LayoutChange | None = None,
    constants: "KVConstants | None" = None,
) -> EngineParts:
    """An engine's parts around a loaded model.  ``limits`` are those from before the weights were loaded.

    ``constants`` are what calibration found out about the model's heads, None for those of the head profile, if any;
    fp8 cannot do without.

    ``wrap_kernels`` and ``alter_layout`` are for measurements; what serves goes without."""
    from kvasir.engine.head_constants import profile_constants
    from kvasir.engine.runner import ModelRunner
    from kvasir.formats.store import KVStore
    from kvasir.kernels.select import make_kernels
    from kvasir.models.decoder import Decoder
    from kvasir.models.digest import computation_digest

    model_config = loaded.model_config
    threads = config.threads or usable_cores()
    plan = plan_pool(model_config, config, loaded.weights.num_bytes, limits, alter_layout)
    config = replace(plan.config, threads=threads)
    layout, memory = plan.layout, plan.memory
    if constants is None:
        constants = profile_constants(config.cache, loaded.model_digest)
    if constants is not None:
        layout = replace(layout, constants_digest=constants.digest(layout))
    store = KVStore(layout, memory.num_blocks, constants)
    own_threads = None if loaded.weight_dtype is WeightDtype.INT8 else False
    kernels = make_kernels(config.kernels, threads, own_threads=own_threads)
    if wrap_kernels is not None:
        kernels = wrap_kernels(kernels, store)
    computation = computation_digest(
        loaded.model_digest, model_config, loaded.weight_dtype, plan.max_model_len, kernels.name
    )
    decoder = Decoder(model_config, loaded.weights, kernels, plan.max_model_len)
    return EngineParts(
        config=config,
        folder=loaded.folder,
        model_config=model_config,
        model_digest=loaded.model_digest,
        manager=make_manager(config, layout, memory, computation),
        memory=memory,
        executor=ModelRunner(decoder, store, config),
        kernels_name=kernels.name,
        weights_bytes=loaded.weights.num_bytes,
    )


def make_manager(config: EngineConfig, layout: KVLayout, memory: MemoryPlan, model_digest: str) -> KVManager:
    """``model_digest`` must tell apart everything that changes what is in a block besides the layout."""
    assert config.max_model_len is not None
    return KVManager(
        KVManagerConfig(
            layout=layout,
            num_blocks=memory.num_blocks,
            max_model_len=config.max_model_len,
            max_chunk_tokens=config.scheduler.max_num_batched_tokens,
            model_digest=model_digest,
            enable_prefix_caching=config.cache.enable_prefix_caching,
            allocation=config.cache.allocation,
            eviction=config.cache.eviction,
            sparse_read=config.cache.sparse_read,
        )
    )


def usable_cores() -> int:
    """Cores this process may run on, which a container may have cut down."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
