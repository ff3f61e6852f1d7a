"""Predicts what a start-up log says from the model and the bytes it logs, and compares: the planner's own proof."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvasir.engine.memory import MemoryLimits
from kvasir.engine.pool_plan import plan_pool
from kvasir.planner.engines import EngineName, vllm_rule
from kvasir.planner.kv_groups import StoreFormat
from kvasir.planner.llama_cpp_pool import LlamaCppSettings, llama_cpp_buffers, llama_cpp_view
from kvasir.planner.model_shape import ModelShape
from kvasir.planner.pool import Pool
from kvasir.planner.request import OwnModel
from kvasir.planner.sglang_pool import SglangSettings, sglang_pool
from kvasir.planner.startup_log import StartLog
from kvasir.planner.vllm_pool import VllmRule, VllmSettings, swap_blocks, vllm_pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One logged number: the prediction at the logged KV bytes, and its range over what the log rounds away."""

    name: str
    logged: float
    predicted: float
    lowest: float
    highest: float

    @property
    def is_exact(self) -> bool:
        return self.lowest <= self.logged <= self.highest

    @property
    def deviation(self) -> float:
        """Share by which the prediction at the printed value is off."""
        return self.predicted / self.logged - 1 if self.logged else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSettings:
    """What the log does not say of the run: formats, and the sizes that a hybrid's arithmetic needs."""

    form: StoreFormat = field(default_factory=StoreFormat)
    max_num_batched_tokens: int = 8192
    draft_layers: int = 0
    swap_bytes: int = 4 << 30
    parallel: int = 1
    context: int | None = None


def compare(shape: ModelShape, log: StartLog, settings: LoggedSettings) -> tuple[Comparison, ...]:
    """Every number of the log that the model and the logged bytes determine; () when they determine none."""
    return _COMPARE[log.engine](shape, log, settings)


def _compare_vllm(shape: ModelShape, log: StartLog, settings: LoggedSettings) -> tuple[Comparison, ...]:
    found: list[Comparison] = []
    rule = vllm_rule(log.version)
    if log.num_cpu_blocks:
        blocks = swap_blocks(shape, settings.form, settings.swap_bytes)
        found.append(_exactly("CPU blocks", log.num_cpu_blocks, blocks))
    if log.kv_bytes is None or log.num_tokens is None:
        return tuple(found)
    vllm = VllmSettings(
        max_model_len=log.max_model_len or shape.max_context,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        rule=rule,
        draft_layers=settings.draft_layers,
    )
    pools = [vllm_pool(shape, settings.form, vllm, size) for size in _sizes(log)]
    if log.num_tokens is not None:
        found.append(_ranged("tokens", log.num_tokens, [pool.printed_tokens or 0 for pool in pools]))
    if log.max_concurrency is not None:
        found.append(_concurrency(log, pools, settings.form.block_size, rule))
    return tuple(found)


def _sizes(log: StartLog) -> tuple[int, int, int]:
    """The logged KV bytes, and the least and most they may have been before rounding."""
    assert log.kv_bytes is not None
    return log.kv_bytes, log.kv_bytes - log.rounding_bytes, log.kv_bytes + log.rounding_bytes


def _concurrency(log: StartLog, pools: list[Pool], block_size: int, rule: VllmRule) -> Comparison:
    """Two decimals are printed.  Where it is a plain quotient, the logged tokens must give it by themselves."""
    assert log.max_concurrency is not None and log.num_tokens is not None and log.max_model_len is not None
    values = [pool.printed_concurrency or 0.0 for pool in pools]
    if len(pools[0].resources) == 1 and pools[0].printed_tokens == pools[0].num_blocks[0] * block_size:
        need = log.max_model_len if rule is VllmRule.V0 else -(-log.max_model_len // block_size) * block_size
        values = [log.num_tokens / need] * 3
    value, low, high = values
    return Comparison(
        name="concurrency",
        logged=log.max_concurrency,
        predicted=value,
        lowest=min(low, value) - 0.00501,
        highest=max(high, value) + 0.00501,
    )


def _compare_sglang(shape: ModelShape, log: StartLog, settings: LoggedSettings) -> tuple[Comparison, ...]:
    if log.kv_bytes is None or log.num_tokens is None:
        return ()
    tokens = [sglang_pool(shape, settings.form, SglangSettings(), size).printed_tokens or 0 for size in _sizes(log)]
    return (_ranged("tokens", log.num_tokens, tokens),)


def _compare_llama_cpp(shape: ModelShape, log: StartLog, settings: LoggedSettings) -> tuple[Comparison, ...]:
    parallel = max((buffer.num_sequences for buffer in log.buffers), default=settings.parallel)
    context = settings.context or log.max_model_len or log.num_tokens
    if context is None:
        return ()
    llama = LlamaCppSettings(context=context, parallel=max(parallel, settings.parallel))
    found: list[Comparison] = []
    buffers = llama_cpp_buffers(llama_cpp_view(shape), settings.form, llama)
    for logged in log.buffers:
        for buffer in buffers:
            if buffer.is_sliding == logged.is_sliding and buffer.num_layers == logged.num_layers:
                found.append(_exactly("cells", logged.num_cells, buffer.num_cells))
                found.append(_printed_mib(logged.num_bytes, buffer.num_bytes))
    return tuple(found)


def _printed_mib(logged: int, predicted: int) -> Comparison:
    half = 0.005 * (1 << 20) + 1
    return Comparison(
        name="bytes", logged=logged, predicted=predicted, lowest=predicted - half, highest=predicted + half
    )


def compare_own(own: OwnModel, weight_bytes: int, log: StartLog) -> tuple[Comparison, ...]:
    """Our server's line: the pool that its bytes make, by its own allocator, at the flags that the plan assumes."""
    tokens, concurrency = [], []
    for size in _sizes(log):
        memory = replace(own.engine.cache.memory, kv_cache_memory_bytes=size)
        engine = replace(own.engine, cache=replace(own.engine.cache, memory=memory))
        if log.max_model_len is not None:
            engine = replace(engine, max_model_len=log.max_model_len)
        room = MemoryLimits(total_bytes=1 << 60, available_bytes=1 << 60, source="as logged")
        plan = plan_pool(own.config, engine, weight_bytes, room).memory
        tokens.append(plan.num_tokens)
        concurrency.append(plan.max_concurrency)
    found = [_ranged("tokens", log.num_tokens, tokens)] if log.num_tokens is not None else []
    if log.max_concurrency is not None:
        value, low, high = concurrency
        found.append(
            Comparison(
                name="concurrency",
                logged=log.max_concurrency,
                predicted=value,
                lowest=low - 0.0501,  # one decimal is printed
                highest=high + 0.0501,
            )
        )
    return tuple(found)


def _not_here(shape: ModelShape, log: StartLog, settings: LoggedSettings) -> tuple[Comparison, ...]:
    """Our own log needs our own config: see ``compare_own``."""
    return ()


def _exactly(name: str, logged: float, predicted: float) -> Comparison:
    return Comparison(name=name, logged=logged, predicted=predicted, lowest=predicted, highest=predicted)


def _ranged(name: str, logged: int, predicted: list[int]) -> Comparison:
    value, low, high = predicted
    return Comparison(name=name, logged=logged, predicted=value, lowest=min(low, value), highest=max(high, value))


_COMPARE: dict[EngineName, Callable[[ModelShape, StartLog, LoggedSettings], tuple[Comparison, ...]]] = {
    EngineName.VLLM: _compare_vllm,
    EngineName.SGLANG: _compare_sglang,
    EngineName.LLAMA_CPP: _compare_llama_cpp,
    EngineName.KVASIR: _not_here,
}
