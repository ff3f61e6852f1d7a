"""How much memory there is, and how many KV blocks that makes: bytes become blocks here, through ``KVSpec`` only."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvasir.core.errors import ConfigError
from kvasir.engine.byte_size import format_bytes
from kvasir.engine.cgroup import cgroup_limits
from kvasir.engine.config import CacheConfig
from kvasir.kv.allocation import AllocationKind
from kvasir.kv.layout import KVLayout
from kvasir.kv.split import GroupDemand, num_sequences, share_out, split_pool
from kvasir.scheduling.config import SchedulerConfig

if TYPE_CHECKING:
    from kvasir.models.config import ModelConfig

# Resident without weights, pool and a step's tensors: measured at about 360 MiB for the engine's process with torch,
# and up to 200 MiB for the HTTP process beside it; with room to breathe.
_BASE_BYTES = 640 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """What this process may use in all, what of that is still to be had, and who says so."""

    total_bytes: int
    available_bytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The KV pool before it is allocated.

    ``num_blocks`` per group.  ``pool_bytes`` is what the store will take, exact.  ``num_tokens`` is the context that
    fits when sequences are long, ``max_concurrency`` how many sequences of ``max_model_len`` that is, with fractions.
    ``headroom_bytes`` stay free when weights, working memory and the whole pool are in use.
    """

    num_blocks: tuple[int, ...]
    pool_bytes: int
    num_tokens: int
    max_concurrency: float
    headroom_bytes: int

    @property
    def num_sequences(self) -> int:
        """Whole sequences of ``max_model_len`` at once."""
        return int(self.max_concurrency)


def available_memory(root: Path = Path("/")) -> MemoryLimits:
    """The least of the host and of every control group above this process, for total and available separately.

    ``root`` is where proc and sys are looked for; where there is no proc (macOS), the operating system is asked.
    """
    host_total, host_available = _host_memory(root)
    ceilings = [("the host", host_total, host_available)]
    ceilings += [(group.source, group.limit_bytes, group.available_bytes) for group in cgroup_limits(root)]
    total_by, total_bytes, _ = min(ceilings, key=lambda ceiling: ceiling[1])
    available_by, _, available_bytes = min(ceilings, key=lambda ceiling: ceiling[2])
    source = total_by if total_by == available_by else f"{total_by}; available: {available_by}"
    return MemoryLimits(total_bytes=total_bytes, available_bytes=min(available_bytes, total_bytes), source=source)


def _host_memory(root: Path) -> tuple[int, int]:
    file = root / "proc/meminfo"
    if not file.exists():
        import psutil

        memory = psutil.virtual_memory()
        return memory.total, memory.available
    kib = {}
    for line in file.read_text().splitlines():
        key, _, value = line.partition(":")
        kib[key] = int(value.split()[0])
    # Kernels before 3.14 do not say what is available.
    available = kib.get("MemAvailable", kib["MemFree"] + kib.get("Buffers", 0) + kib.get("Cached", 0))
    return kib["MemTotal"] << 10, available << 10


def working_memory_bytes(model: "ModelConfig", scheduler: SchedulerConfig) -> int:
    """What a step takes besides weights and pool: the process itself, activations of the fullest step, logits."""
    q_and_kv = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    # Residual, its normed copy and a product; q/k/v before and after; gate, up and their product.  All four bytes wide.
    per_token = 4 * (
        3 * model.hidden_size + 2 * q_and_kv + model.num_heads * model.head_dim + 3 * model.intermediate_size
    )
    # Logits as the product leaves them and as fp32, copied once when siblings share a row, and masks over them.
    per_sequence = 16 * model.vocab_size
    return _BASE_BYTES + scheduler.max_num_batched_tokens * per_token + scheduler.max_num_seqs * per_sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """What has to fit: the layout and longest sequence of the cache, and everything that is not the cache."""

    layout: KVLayout
    max_model_len: int
    weights_bytes: int
    working_bytes: int


def plan_memory(limits: MemoryLimits, needs: MemoryNeeds, cache: CacheConfig, scheduler: SchedulerConfig) -> MemoryPlan:
    """Split the pool between the groups (``kv/split.py``), for the context and concurrency that are configured.

    ``limits`` are those from before the weights were loaded.  Raises ``ConfigError`` with the numbers when not even one
    sequence fits, when nothing is left for the pool, or when an explicit ``--kv-cache-memory`` is more than there is.
    """
    budget_bytes = _pool_budget(limits, needs, cache)
    chunk_tokens, max_model_len = scheduler.max_num_batched_tokens, needs.max_model_len
    demand = _Demand(needs.layout, cache.allocation, chunk_tokens)
    if demand.num_bytes(max_model_len) > budget_bytes:
        raise _too_small(demand, max_model_len, budget_bytes, cache)
    groups = [GroupDemand.of(spec) for spec in needs.layout.groups]
    if cache.allocation is AllocationKind.CONTIGUOUS:
        regions = demand.blocks(max_model_len)
        num_blocks = share_out(regions, [group.block_bytes for group in groups], budget_bytes)
        concurrency = min(have / need for have, need in zip(num_blocks, regions, strict=True))
    else:
        num_blocks = split_pool(
            groups,
            budget_bytes,
            max_model_len=max_model_len,
            chunk_tokens=chunk_tokens,
            max_num_seqs=scheduler.max_num_seqs,
        )
        concurrency = num_sequences(groups, num_blocks, max_model_len, chunk_tokens)
    pool_bytes = sum(spec.pool_bytes(count) for spec, count in zip(needs.layout.groups, num_blocks, strict=True))
    block_size = needs.layout.block_size
    whole_tokens = -(-max_model_len // block_size) * block_size
    return MemoryPlan(
        num_blocks=num_blocks,
        pool_bytes=pool_bytes,
        num_tokens=int(concurrency * whole_tokens + 1e-6),
        max_concurrency=concurrency,
        headroom_bytes=limits.available_bytes - needs.weights_bytes - needs.working_bytes - pool_bytes,
    )


def _pool_budget(limits: MemoryLimits, needs: MemoryNeeds, cache: CacheConfig) -> int:
    taken_bytes = needs.weights_bytes + needs.working_bytes
    asked_bytes = cache.memory.kv_cache_memory_bytes
    taken = f"weights take {format_bytes(needs.weights_bytes)} and work {format_bytes(needs.working_bytes)}"
    if asked_bytes is not None:
        most_bytes = limits.available_bytes - taken_bytes
        if asked_bytes > most_bytes:
            raise ConfigError(
                f"--kv-cache-memory {format_bytes(asked_bytes)} is more than there is: "
                f"{format_bytes(limits.available_bytes)} of {format_bytes(limits.total_bytes)} are available "
                f"({limits.source}), {taken}, so at most {format_bytes(max(0, most_bytes))} can be given."
            )
        return asked_bytes
    share = cache.memory.memory_utilization
    allowed_bytes = min(int(limits.total_bytes * share), limits.available_bytes)
    if allowed_bytes <= taken_bytes:
        raise ConfigError(
            f"--memory-utilization {share} allows {format_bytes(allowed_bytes)} ({limits.source}: "
            f"{format_bytes(limits.available_bytes)} of {format_bytes(limits.total_bytes)} available), but {taken}, so "
            "nothing is left for the KV cache; raise it, free memory, or take a smaller model or --weight-dtype."
        )
    return allowed_bytes - taken_bytes


@dataclass(frozen=True, slots=True)
class _Demand:
    """What one sequence takes of each group when it is alone, as a function of its length."""

    layout: KVLayout
    allocation: AllocationKind
    chunk_tokens: int

    def blocks(self, num_tokens: int) -> tuple[int, ...]:
        if self.allocation is AllocationKind.CONTIGUOUS:
            return tuple(-(-num_tokens // self.layout.block_size) for _ in self.layout.groups)
        return tuple(spec.max_blocks(num_tokens, self.chunk_tokens) for spec in self.layout.groups)

    def num_bytes(self, num_tokens: int) -> int:
        counts = self.blocks(num_tokens)
        return sum(spec.pool_bytes(count) for spec, count in zip(self.layout.groups, counts, strict=True))

    def longest(self, budget_bytes: int, below: int) -> int:
        """The most tokens (less than ``below``) one sequence can have in ``budget_bytes``; 0 when none fit."""
        fits, does_not = 0, below
        while does_not - fits > 1:
            middle = (fits + does_not) // 2
            if self.num_bytes(middle) <= budget_bytes:
                fits = middle
            else:
                does_not = middle
        return fits


def _too_small(demand: _Demand, max_model_len: int, budget_bytes: int, cache: CacheConfig) -> ConfigError:
    longest = demand.longest(budget_bytes, max_model_len)
    flag = "--memory-utilization" if cache.memory.kv_cache_memory_bytes is None else "--kv-cache-memory"
    advice = f"lower it to at most {longest} or raise {flag}" if longest else f"raise {flag}"
    return ConfigError(
        f"--max-model-len {max_model_len} needs {format_bytes(demand.num_bytes(max_model_len))} of KV cache for one "
        f"sequence, but the pool has {format_bytes(budget_bytes)} ({longest} tokens); {advice}."
    )
