"""Known traps of a planned run, each as one sentence with its numbers; nothing is said where nothing is wrong."""

from collections.abc import Callable, Iterator
from enum import Enum

from kvasir.planner.capacity import Capacity
from kvasir.planner.engines import EngineName, vllm_rule
from kvasir.planner.instance import Instance, run_shape
from kvasir.planner.kv_groups import StoreDtype, StoreFormat, kv_groups
from kvasir.planner.lengths import LengthSample
from kvasir.planner.llama_cpp_pool import LlamaCppSettings, llama_cpp_buffers, llama_cpp_view
from kvasir.planner.request import PlanRequest
from kvasir.planner.vllm_pool import VllmRule

MIB = 1 << 20
_FOUR_BITS = frozenset({StoreDtype.Q4_0, StoreDtype.Q4_1})
_LLAMA_QUANTISED = frozenset({*_FOUR_BITS, StoreDtype.Q5_0, StoreDtype.Q5_1, StoreDtype.Q8_0})


class Trap(Enum):
    """Stable names for programs; the sentence is for people."""

    CONTEXT_TOO_LONG = "context-too-long"
    CONTEXT_BEYOND_MODEL = "context-beyond-model"
    CONTEXT_UNUSED = "context-unused"
    SLIDING_TIMES_SLOTS = "sliding-times-slots"
    HEADS_REPLICATED = "heads-replicated"
    LATENT_REPLICATED = "latent-replicated"
    FP8_WITHOUT_SCALES = "fp8-without-scales"
    FOUR_BIT_K_BIAS = "four-bit-k-bias"
    QUANTISED_V_NEEDS_FLASH = "quantised-v-needs-flash-attention"
    WINDOWS_IGNORED = "windows-ignored"
    TOKENS_UNDERSTATE = "printed-tokens-understate"
    BATCHED_TOKENS_SHRINK = "batched-tokens-shrink-context"
    GRAPHS_OUTSIDE = "graphs-outside-budget"
    MAY_NOT_START = "may-not-start"


def find_traps(
    request: PlanRequest, instance: Instance, capacity: Capacity, sample: LengthSample
) -> tuple[tuple[Trap, str], ...]:
    found = [*_context(request, instance, sample), *_split(request, instance), *_formats(request)]
    found += _BY_ENGINE[request.settings.engine](request, instance)
    if instance.pool_low is None and capacity.shared >= 1:
        found.append(
            (
                Trap.MAY_NOT_START,
                "With the most overhead that logs show, nothing is left for KV on these devices: start once and give "
                "the log with --from-log before buying.",
            )
        )
    return tuple(found)


def _context(request: PlanRequest, instance: Instance, sample: LengthSample) -> Iterator[tuple[Trap, str]]:
    context, most = request.settings.max_model_len, request.shape.max_context
    if context > most:
        yield (
            Trap.CONTEXT_BEYOND_MODEL,
            f"A context of {context:,} is beyond the {most:,} tokens the model's config promises.",
        )
    if instance.pool.num_sequences(context) < 1:
        fits = _longest(instance, context)
        yield (
            Trap.CONTEXT_TOO_LONG,
            f"Not one sequence of {context:,} tokens fits in the pool; vLLM would refuse to start. Lower the context "
            f"to at most {fits:,} tokens.",
        )
    elif sample.max_total * 2 <= context:
        yield (
            Trap.CONTEXT_UNUSED,
            f"The longest request of the stated lengths has {sample.max_total:,} tokens, but the context is "
            f"{context:,}: it only makes the worst case worse"
            + (", and the activations that are profiled." if _is_v0(request) else "."),
        )


def _is_v0(request: PlanRequest) -> bool:
    settings = request.settings
    return settings.engine is EngineName.VLLM and vllm_rule(settings.effective_version) is VllmRule.V0


def _longest(instance: Instance, below: int) -> int:
    fits, does_not = 0, below
    while does_not - fits > 1:
        middle = (fits + does_not) // 2
        if instance.pool.num_sequences(middle) >= 1:
            fits = middle
        else:
            does_not = middle
    return fits


def _split(request: PlanRequest, instance: Instance) -> Iterator[tuple[Trap, str]]:
    devices, heads = instance.form.tensor_parallel, request.shape.min_kv_heads
    if heads and devices > heads:
        yield (
            Trap.HEADS_REPLICATED,
            f"{devices} devices share {heads} KV heads, so heads are replicated: KV bytes of a device stop falling at "
            f"{heads} devices.",
        )
    if request.shape.is_latent and devices > 1:
        yield (
            Trap.LATENT_REPLICATED,
            f"The latent KV of MLA is not divided by tensor parallelism: each of the {devices} devices holds all of "
            "it; data-parallel attention divides it.",
        )


def _formats(request: PlanRequest) -> Iterator[tuple[Trap, str]]:
    if StoreDtype.FP8 in (request.k_dtype, request.v_dtype):
        yield (
            Trap.FP8_WITHOUT_SCALES,
            "fp8 KV without calibrated scales clips outliers: use a checkpoint that brings k_scale and v_scale. It "
            "halves the bytes, not the time: attention runs about 1.3 times as fast.",
        )
    if request.k_dtype in _FOUR_BITS and request.shape.has_k_bias:
        yield (
            Trap.FOUR_BIT_K_BIAS,
            f"K of this model has a bias, which puts large outliers in a few channels: {request.k_dtype.value} for K "
            "damages answers; keep K at 8 bits or more.",
        )


def _vllm(request: PlanRequest, instance: Instance) -> Iterator[tuple[Trap, str]]:
    rule = vllm_rule(request.settings.effective_version)
    shape = request.shape
    if rule is VllmRule.V0 and shape.windows:
        yield (
            Trap.WINDOWS_IGNORED,
            f"vLLM up to 0.8 gives sliding layers the whole context: windows of {_windows(shape.windows)} save none.",
        )
    if rule is VllmRule.V1 and shape.is_hybrid:
        yield (
            Trap.TOKENS_UNDERSTATE,
            "vLLM 0.9 to 0.20 prints 'GPU KV cache size' for a hybrid as if every group needed the whole context: "
            "trust its 'Maximum concurrency' instead.",
        )
    if rule is VllmRule.V1_CONCURRENCY and shape.windows:
        tokens = run_shape(request, instance.form.tensor_parallel).max_num_batched_tokens
        yield (
            Trap.BATCHED_TOKENS_SHRINK,
            f"Each sliding group reserves the window and {2 * tokens:,} tokens in flight for every sequence: a larger "
            "--max-num-batched-tokens shrinks what fits.",
        )
    if rule is not VllmRule.V1_CONCURRENCY:
        yield (
            Trap.GRAPHS_OUTSIDE,
            "CUDA graphs (0.2 to 2.2 GiB) are not in --gpu-memory-utilization before 0.21: leave the rest of the card "
            "free for them.",
        )


def _llama_cpp(request: PlanRequest, instance: Instance) -> Iterator[tuple[Trap, str]]:
    shape = llama_cpp_view(request.shape)
    form = StoreFormat(k_dtype=request.k_dtype, v_dtype=request.v_dtype, block_size=1)
    if shape.windows:
        slots = instance.pool.max_sequences or 1
        settings = LlamaCppSettings(context=instance.pool.printed_tokens or 1, parallel=slots)
        sliding = sum(b.num_bytes for b in llama_cpp_buffers(shape, form, settings) if b.is_sliding)
        yield (
            Trap.SLIDING_TIMES_SLOTS,
            f"-np multiplies the sliding cache even when slots share a buffer: {slots} slots take "
            f"{sliding / MIB:,.0f} MiB of it, whatever -c is.",
        )
    if request.shape.windows and not shape.windows:
        yield (
            Trap.WINDOWS_IGNORED,
            f"llama.cpp does not use the windows of {request.shape.architecture}: every layer gets the full cache.",
        )
    if request.v_dtype in _LLAMA_QUANTISED:
        yield (
            Trap.QUANTISED_V_NEEDS_FLASH,
            "A quantised V cache needs flash attention (-fa on); without it llama.cpp refuses to start.",
        )


def _sglang(request: PlanRequest, instance: Instance) -> Iterator[tuple[Trap, str]]:
    groups = kv_groups(request.shape, instance.form)
    if groups and all(spec.retention.window for spec in groups):
        yield (
            Trap.WINDOWS_IGNORED,
            "SGLang keeps the whole context where all layers slide: the window saves compute, not memory.",
        )


def _none(request: PlanRequest, instance: Instance) -> Iterator[tuple[Trap, str]]:
    return iter(())


def _windows(windows: tuple[int, ...]) -> str:
    return " and ".join(f"{window:,}" for window in windows)


_BY_ENGINE: dict[EngineName, Callable[[PlanRequest, Instance], Iterator[tuple[Trap, str]]]] = {
    EngineName.VLLM: _vllm,
    EngineName.LLAMA_CPP: _llama_cpp,
    EngineName.SGLANG: _sglang,
    EngineName.KVASIR: _none,
}
