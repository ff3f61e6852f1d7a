"""One engine on some devices of one kind: memory budget, pool, how many sequences it holds."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvasir.core.errors import ConfigError
from kvasir.engine.pool_plan import PoolPlan, plan_pool
from kvasir.hardware.card import DeviceCard
from kvasir.kv.allocation import AllocationKind
from kvasir.kv.retention import FULL
from kvasir.kv.spec import BlockArithmetic
from kvasir.kv.split import GroupDemand
from kvasir.planner.engines import EngineName, vllm_rule
from kvasir.planner.kv_groups import StoreFormat, kv_groups
from kvasir.planner.llama_cpp_pool import LlamaCppSettings, largest_context, llama_cpp_pool, llama_cpp_view
from kvasir.planner.model_shape import ModelShape
from kvasir.planner.overhead import Range, RunShape, estimate, measured
from kvasir.planner.pool import Pool, Resource
from kvasir.planner.request import PlanRequest
from kvasir.planner.sglang_pool import SglangSettings, sglang_pool
from kvasir.planner.vllm_pool import VllmSettings, vllm_pool

GIB = 1 << 30
DEFAULT_UTILIZATION = {EngineName.VLLM: 0.9, EngineName.SGLANG: 0.88, EngineName.LLAMA_CPP: 1.0}
DEFAULT_BLOCK = {EngineName.VLLM: 16, EngineName.SGLANG: 1, EngineName.LLAMA_CPP: 1, EngineName.KVASIR: 16}
DEFAULT_SEQS = {EngineName.VLLM: 256, EngineName.SGLANG: 256, EngineName.LLAMA_CPP: 4}
DEFAULT_BATCHED = {EngineName.VLLM: 8192, EngineName.SGLANG: 8192, EngineName.LLAMA_CPP: 512}
_LLAMA_MARGIN_BYTES = GIB
"""What llama.cpp's own fitting leaves free on a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bytes of one device.  ``kv`` is what is left: with the expected overhead, with the most, with the least."""

    total_bytes: int
    usable_bytes: int
    weight_bytes: int
    overhead: Range
    kv_expected: int
    kv_low: int
    kv_high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A planned engine.  ``pool`` is at the expected overhead, ``pool_low`` and ``pool_high`` at its ends (None: not
    even a block).  ``own`` is our own engine's plan, whose pool is what it will allocate."""

    card: DeviceCard
    num_devices: int
    form: StoreFormat
    budget: Budget
    pool: Pool
    pool_low: Pool | None
    pool_high: Pool
    own: PoolPlan | None = None

    def groups(self, shape: ModelShape) -> tuple[BlockArithmetic, ...]:
        """The stores of one device: our engine's layout, or those of ``shape`` in the engine's format."""
        return self.own.layout.groups if self.own is not None else kv_groups(shape, self.form)


def plan_instance(request: PlanRequest, card: DeviceCard, num_devices: int) -> Instance:
    """Raises ``ConfigError`` with the numbers when it does not fit or cannot be split like that."""
    return _PLANNERS[request.settings.engine](request, card, num_devices)


def store_format(request: PlanRequest, tensor_parallel: int) -> StoreFormat:
    own = request.own if request.settings.engine is EngineName.KVASIR else None
    return StoreFormat(
        k_dtype=request.k_dtype,
        v_dtype=request.v_dtype,
        block_size=request.settings.block_size or DEFAULT_BLOCK[request.settings.engine],
        tensor_parallel=tensor_parallel,
        retention=FULL if own is None else own.engine.cache.kv_retention,
    )


def run_shape(request: PlanRequest, tensor_parallel: int) -> RunShape:
    settings = request.settings
    return RunShape(
        tensor_parallel=tensor_parallel,
        max_num_seqs=settings.max_num_seqs or DEFAULT_SEQS[settings.engine],
        max_num_batched_tokens=settings.max_num_batched_tokens or DEFAULT_BATCHED[settings.engine],
    )


def _budget(request: PlanRequest, card: DeviceCard, overhead: Range, num_devices: int) -> Budget:
    settings = request.settings
    utilization = settings.utilization or DEFAULT_UTILIZATION[settings.engine]
    weights = -(-request.weight_bytes // num_devices)
    usable = int(card.memory_bytes * utilization)
    left = usable - weights
    if request.log is not None and request.log.kv_bytes is not None and measured(request.log) is None:
        kv = request.log.kv_bytes
        overhead = Range(low=0, expected=max(0, left - kv), high=0, source="measured: the KV bytes of the log")
        return Budget(
            total_bytes=card.memory_bytes,
            usable_bytes=usable,
            weight_bytes=weights,
            overhead=replace(overhead, low=overhead.expected, high=overhead.expected),
            kv_expected=kv,
            kv_low=kv,
            kv_high=kv,
        )
    return Budget(
        total_bytes=card.memory_bytes,
        usable_bytes=usable,
        weight_bytes=weights,
        overhead=overhead,
        kv_expected=left - overhead.expected,
        kv_low=left - overhead.high,
        kv_high=left - overhead.low,
    )


def _overhead(request: PlanRequest, tensor_parallel: int) -> Range:
    found = measured(request.log) if request.log is not None else None
    settings = request.settings
    return found or estimate(
        request.shape, settings.engine, settings.effective_version, run_shape(request, tensor_parallel)
    )


def _pools(budget: Budget, make: Callable[[int], Pool]) -> tuple[Pool, Pool | None, Pool]:
    if budget.kv_expected <= 0:
        raise ConfigError(
            f"weights take {budget.weight_bytes / GIB:.1f} GiB and overhead {budget.overhead.expected / GIB:.1f} GiB "
            f"of {budget.usable_bytes / GIB:.1f} GiB usable on each device, so nothing is left for KV."
        )
    try:
        low = make(budget.kv_low) if budget.kv_low > 0 else None
    except ConfigError:
        low = None
    return make(budget.kv_expected), low, make(budget.kv_high)


def _plan_vllm(request: PlanRequest, card: DeviceCard, num_devices: int) -> Instance:
    form = store_format(request, num_devices)
    budget = _budget(request, card, _overhead(request, num_devices), num_devices)
    settings = VllmSettings(
        max_model_len=request.settings.max_model_len,
        max_num_batched_tokens=run_shape(request, num_devices).max_num_batched_tokens,
        rule=vllm_rule(request.settings.effective_version),
    )
    pool, low, high = _pools(budget, lambda kv: vllm_pool(request.shape, form, settings, kv))
    return Instance(
        card=card, num_devices=num_devices, form=form, budget=budget, pool=pool, pool_low=low, pool_high=high
    )


def _plan_sglang(request: PlanRequest, card: DeviceCard, num_devices: int) -> Instance:
    form = store_format(request, num_devices)
    run = run_shape(request, num_devices)
    full = _overhead(request, num_devices)
    # Activations and graphs live in what --mem-fraction-static leaves free; only the framework counts against it.
    framework = estimate(request.shape, EngineName.SGLANG, "", replace(run, max_num_seqs=0, max_num_batched_tokens=0))
    overhead = full if request.log is not None else replace(framework, source="context and libraries: SGLang logs")
    states = request.shape.state_bytes * request.load.users // num_devices
    budget = _budget(request, card, overhead, num_devices)
    settings = SglangSettings(
        page_size=form.block_size,
        chunked_prefill_size=run.max_num_batched_tokens,
        max_running_requests=request.load.users if states else 0,
    )
    pool, low, high = _pools(budget, lambda kv: sglang_pool(request.shape, form, settings, kv - states))
    return Instance(
        card=card, num_devices=num_devices, form=form, budget=budget, pool=pool, pool_low=low, pool_high=high
    )


def _plan_llama_cpp(request: PlanRequest, card: DeviceCard, num_devices: int) -> Instance:
    """Several devices hold different layers: their memories add up, and one buffer of context is split with them."""
    shape = llama_cpp_view(request.shape)
    form = store_format(request, 1)
    together = replace(card, memory_bytes=card.memory_bytes * num_devices - _LLAMA_MARGIN_BYTES * num_devices)
    overhead = _overhead(request, 1)
    spread = Range(
        low=overhead.low * num_devices,
        expected=overhead.expected * num_devices,
        high=overhead.high * num_devices,
        source=overhead.source,
    )
    budget = _budget(request, together, spread, 1)
    slots = request.settings.max_num_seqs or max(1, request.load.users)
    asked = request.settings.max_model_len * slots

    def make(kv_bytes: int) -> Pool:
        settings = LlamaCppSettings(context=max(asked, slots), parallel=slots)
        most = largest_context(shape, form, settings, kv_bytes)
        if most < slots:
            raise ConfigError(
                f"{kv_bytes / GIB:.2f} GiB are left for KV, too little for {slots} slots; ask for fewer with -np."
            )
        return llama_cpp_pool(shape, form, replace(settings, context=min(asked, most)))

    pool, low, high = _pools(budget, make)
    return Instance(
        card=card, num_devices=num_devices, form=form, budget=budget, pool=pool, pool_low=low, pool_high=high
    )


def _plan_kvasir(request: PlanRequest, card: DeviceCard, num_devices: int) -> Instance:
    own = request.own
    if own is None:
        raise ConfigError(f"Kvasir does not serve the architecture {request.shape.architecture}.")
    if num_devices != 1:
        raise ConfigError("Kvasir runs on one machine.")
    weights = request.weight_bytes
    plan = plan_pool(own.config, own.engine, weights, own.limits)
    memory = plan.memory
    working = plan.working_bytes
    none = Range(low=working, expected=working, high=working, source="what our engine sets aside for steps")
    share = own.engine.cache.memory.memory_utilization
    budget = Budget(
        total_bytes=own.limits.total_bytes,
        usable_bytes=min(own.limits.available_bytes, int(own.limits.total_bytes * share)),
        weight_bytes=weights,
        overhead=none,
        kv_expected=memory.pool_bytes,
        kv_low=memory.pool_bytes,
        kv_high=memory.pool_bytes,
    )
    chunk = own.engine.scheduler.max_num_batched_tokens
    resources = tuple(
        Resource(
            name=f"blocks of group {group}",
            capacity=count - _own_passing(spec, plan, chunk),
            cost=_own_cost(spec, plan),
            is_prefix_shared=own.engine.cache.enable_prefix_caching,
        )
        for group, (spec, count) in enumerate(zip(plan.layout.groups, memory.num_blocks, strict=True))
    )
    pool = Pool(
        num_bytes=memory.pool_bytes,
        block_size=plan.layout.block_size,
        resources=resources,
        num_blocks=memory.num_blocks,
        printed_tokens=memory.num_tokens,
        printed_concurrency=memory.max_concurrency,
    )
    return Instance(
        card=card,
        num_devices=1,
        form=store_format(request, 1),
        budget=budget,
        pool=pool,
        pool_low=pool,
        pool_high=pool,
        own=plan,
    )


def _own_cost(spec: BlockArithmetic, plan: PoolPlan) -> Callable[[int], float]:
    """Blocks that a sequence of n tokens takes of one group: what it holds, or all it might ever hold."""
    if plan.config.cache.allocation is AllocationKind.CONTIGUOUS:
        reserved = -(-plan.max_model_len // spec.block_size)
        return lambda n: reserved
    return GroupDemand.of(spec).held


def _own_passing(spec: BlockArithmetic, plan: PoolPlan, chunk_tokens: int) -> int:
    """Blocks of one group that the prompts of a step take beyond what their sequences hold between steps."""
    if plan.config.cache.allocation is AllocationKind.CONTIGUOUS:
        return 0
    return GroupDemand.of(spec).passing(plan.max_model_len, chunk_tokens)


_PLANNERS: dict[EngineName, Callable[[PlanRequest, DeviceCard, int], Instance]] = {
    EngineName.VLLM: _plan_vllm,
    EngineName.SGLANG: _plan_sglang,
    EngineName.LLAMA_CPP: _plan_llama_cpp,
    EngineName.KVASIR: _plan_kvasir,
}
