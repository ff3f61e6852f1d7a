"""Everything the engine can be told, parsed once into frozen values; flags, LLM arguments and tests all make these."""

from dataclasses import dataclass, field

from kvasir.core.errors import ConfigError
from kvasir.kernels.choice import KernelChoice
from kvasir.kv.allocation import AllocationKind
from kvasir.kv.eviction import EvictionRule
from kvasir.kv.format_pair import FormatPair
from kvasir.kv.retention import FULL, Retention
from kvasir.kv.sparse_read import SparseRead
from kvasir.models.weight_dtype import WeightDtype
from kvasir.scheduling.config import SchedulerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """How much memory the KV pool may take.  ``kv_cache_memory_bytes`` wins; else ``memory_utilization`` of what the
    machine or its cgroup allows, less weights and working memory."""

    kv_cache_memory_bytes: int | None = None
    memory_utilization: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 < self.memory_utilization <= 1.0:
            raise ConfigError(f"--memory-utilization must be above 0 and at most 1, got {self.memory_utilization}.")
        if self.kv_cache_memory_bytes is not None and self.kv_cache_memory_bytes <= 0:
            raise ConfigError(f"--kv-cache-memory must be above 0 bytes, got {self.kv_cache_memory_bytes}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """``kv_cache_dtype`` None means auto, ``eviction`` None that prompts stay whole, ``sparse_read`` None
    that every query reads all it sees.

    ``kv_retention`` (FULL or WINDOW) is for layers without a window of their own; the pool plan rounds it to whole
    blocks.  ``head_profile``, a file or 'default', says it for every head instead of both."""

    block_size: int = 16
    kv_cache_dtype: FormatPair | None = None
    kv_retention: Retention = FULL
    head_profile: str | None = None
    enable_prefix_caching: bool = True
    allocation: AllocationKind = AllocationKind.PAGED
    eviction: EvictionRule | None = None
    sparse_read: SparseRead | None = None
    memory: MemoryConfig = field(default_factory=MemoryConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """``model``: 'demo', a folder, a .gguf file or a Hugging Face id.  ``max_model_len`` None: the model's own context.
    ``threads`` None: all cores this process may use.  ``seed`` seeds requests that bring no seed of their own."""

    model: str = "demo"
    weight_dtype: WeightDtype = WeightDtype.INT8
    max_model_len: int | None = None
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    kernels: KernelChoice = KernelChoice.AUTO
    threads: int | None = None
    seed: int = 0
