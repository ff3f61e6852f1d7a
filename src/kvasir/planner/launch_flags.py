"""The command lines to paste: flags of vLLM, SGLang, llama.cpp and Kvasir for one planned instance."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from kvasir.kv.format_spec import KVDtype
from kvasir.planner.capacity import Capacity
from kvasir.planner.engines import EngineName, rule_sentence
from kvasir.planner.instance import DEFAULT_UTILIZATION, Instance, run_shape
from kvasir.planner.kv_groups import AnyDtype, StoreDtype
from kvasir.planner.request import PlanRequest

_LLAMA_TYPES: dict[AnyDtype, str] = {KVDtype.FP16: "f16", KVDtype.BF16: "bf16", KVDtype.FP32: "f32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFlags:
    """``command`` is one shell line; ``assumes`` says which version's arithmetic stands behind it."""

    engine: EngineName
    command: str
    assumes: str


def launch_flags(request: PlanRequest, instance: Instance, capacity: Capacity) -> LaunchFlags:
    words = _WRITERS[request.settings.engine](request, instance, capacity)
    return LaunchFlags(
        engine=request.settings.engine,
        command=shlex.join(words),
        assumes=rule_sentence(request.settings.engine, request.settings.effective_version),
    )


def _seqs(request: PlanRequest, capacity: Capacity) -> int:
    """As many as were planned, and no more than are asked for at once with some room to burst."""
    if request.settings.max_num_seqs is not None:
        return request.settings.max_num_seqs
    return max(1, min(capacity.planned, 2 * request.load.users))


def _utilization(request: PlanRequest) -> str:
    found = request.settings.utilization or DEFAULT_UTILIZATION[request.settings.engine]
    return f"{found:g}"


def _vllm(request: PlanRequest, instance: Instance, capacity: Capacity) -> list[str]:
    run = run_shape(request, instance.form.tensor_parallel)
    words = ["vllm", "serve", request.shape.name]
    words += ["--tensor-parallel-size", str(instance.num_devices)]
    words += ["--gpu-memory-utilization", _utilization(request)]
    words += ["--max-model-len", str(request.settings.max_model_len)]
    words += ["--max-num-seqs", str(_seqs(request, capacity))]
    words += ["--max-num-batched-tokens", str(run.max_num_batched_tokens)]
    words += ["--kv-cache-dtype", "fp8" if request.k_dtype is StoreDtype.FP8 else "auto"]
    words += ["--block-size", str(instance.form.block_size)]
    return [*words, "--enable-prefix-caching"]


def _sglang(request: PlanRequest, instance: Instance, capacity: Capacity) -> list[str]:
    run = run_shape(request, instance.form.tensor_parallel)
    words = ["python", "-m", "sglang.launch_server", "--model-path", request.shape.name]
    words += ["--tp", str(instance.num_devices)]
    words += ["--mem-fraction-static", _utilization(request)]
    words += ["--context-length", str(request.settings.max_model_len)]
    words += ["--max-total-tokens", str(instance.pool.printed_tokens)]
    words += ["--max-running-requests", str(_seqs(request, capacity))]
    words += ["--chunked-prefill-size", str(run.max_num_batched_tokens)]
    words += ["--kv-cache-dtype", "fp8_e4m3" if request.k_dtype is StoreDtype.FP8 else "auto"]
    words += ["--page-size", str(instance.form.block_size), "--radix-eviction-policy", "lru"]
    if request.shape.windows:
        words += ["--swa-full-tokens-ratio", "0.8"]
    return words


def _llama_cpp(request: PlanRequest, instance: Instance, capacity: Capacity) -> list[str]:
    run = run_shape(request, 1)
    words = ["llama-server", "-m", f"{request.shape.name.split('/')[-1]}.gguf"]
    words += ["-c", str(instance.pool.printed_tokens), "-np", str(instance.pool.max_sequences or 1)]
    words += ["-ub", str(run.max_num_batched_tokens), "-b", str(max(2048, run.max_num_batched_tokens))]
    words += ["-ctk", _llama_type(request.k_dtype), "-ctv", _llama_type(request.v_dtype)]
    return [*words, "-fa", "on", "-ngl", "99", "--kv-unified"]


def _llama_type(dtype: AnyDtype) -> str:
    return dtype.value if isinstance(dtype, StoreDtype) else _LLAMA_TYPES.get(dtype, "f16")


def _kvasir(request: PlanRequest, instance: Instance, capacity: Capacity) -> list[str]:
    own = request.own
    assert own is not None and instance.own is not None
    words = ["kvasir", "serve", own.engine.model]
    words += ["--max-model-len", str(instance.own.max_model_len)]
    words += ["--kv-cache-memory", str(instance.pool.num_bytes)]
    cache = instance.own.config.cache
    if cache.head_profile is not None:
        words += ["--head-profile", cache.head_profile]
    else:
        words += ["--kv-cache-dtype", str(cache.kv_cache_dtype), "--kv-retention", str(cache.kv_retention)]
    words += ["--block-size", str(instance.pool.block_size)]
    words += ["--max-num-seqs", str(own.engine.scheduler.max_num_seqs)]
    words += ["--max-num-batched-tokens", str(own.engine.scheduler.max_num_batched_tokens)]
    return [
        *words,
        "--enable-prefix-caching" if own.engine.cache.enable_prefix_caching else "--no-enable-prefix-caching",
    ]


_WRITERS: dict[EngineName, Callable[[PlanRequest, Instance, Capacity], list[str]]] = {
    EngineName.VLLM: _vllm,
    EngineName.SGLANG: _sglang,
    EngineName.LLAMA_CPP: _llama_cpp,
    EngineName.KVASIR: _kvasir,
}
