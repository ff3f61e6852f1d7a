"""What an engine takes besides weights and KV, as a range with its source; a start-up log replaces it."""

from dataclasses import dataclass

from kvasir.planner.engines import EngineName, vllm_rule
from kvasir.planner.model_shape import ModelShape
from kvasir.planner.startup_log import StartLog
from kvasir.planner.vllm_pool import VllmRule

GIB = 1 << 30

_SAMPLER_COPIES = 9.7
"""fp32 copies of the logits that vLLM's sampler holds at its peak: fits the logs of three vocabularies within 6 %."""
_ACTIVATION_BYTES = 2
_HIDDEN_COPIES, _INNER_COPIES = 3, 3
"""16-bit copies of a token's hidden and feed-forward vectors at the peak of a layer: fits two logs that differ in the
profiled length only (20,000 and 29,000 tokens) within 1 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Bytes of one device: what is expected, and the least and most that logs show."""

    low: int
    expected: int
    high: int
    source: str

    def plus(self, other: "Range") -> "Range":
        return Range(
            low=self.low + other.low,
            expected=self.expected + other.expected,
            high=self.high + other.high,
            source=f"{self.source}; {other.source}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """What a run is told that its working memory depends on."""

    tensor_parallel: int = 1
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192


def measured(log: StartLog) -> Range | None:
    """The overhead of a log, if it says enough; no range is left."""
    overhead = log.overhead_bytes
    if overhead is None:
        return None
    return Range(low=overhead, expected=overhead, high=overhead, source="measured: from the start-up log")


def estimate(shape: ModelShape, engine: EngineName, version: str, run: RunShape) -> Range:
    """Activations, framework and collectives, and CUDA graphs where they count within the budget."""
    if engine is EngineName.LLAMA_CPP:
        return _gib(0.3, 0.6, 1.3, "compute buffers and context: llama.cpp logs").plus(_output_buffer(shape))
    total = _activations(shape, run).plus(_framework(run))
    if engine is EngineName.VLLM and vllm_rule(version) is VllmRule.V1_CONCURRENCY:
        total = total.plus(_gib(0.2, 0.7, 2.2, "CUDA graphs: vLLM logs"))
    return total


def _activations(shape: ModelShape, run: RunShape) -> Range:
    sampler = _SAMPLER_COPIES * run.max_num_seqs * shape.vocab_size * 4
    inner = _inner_size(shape) / run.tensor_parallel
    layer = (
        run.max_num_batched_tokens * _ACTIVATION_BYTES * (_HIDDEN_COPIES * shape.hidden_size + _INNER_COPIES * inner)
    )
    peak = max(sampler, layer)
    return Range(
        low=int(0.6 * peak), expected=int(peak), high=int(1.6 * peak), source="activations: sampler or widest layer"
    )


def _inner_size(shape: ModelShape) -> int:
    """Width of what a token passes in the widest feed-forward: dense or the experts it is routed to."""
    widest = 0
    for layer in shape.layers:
        p = layer.parameters
        active = p.dense + p.expert * p.num_active_experts
        widest = max(widest, active // (3 * shape.hidden_size))
    return widest


def _framework(run: RunShape) -> Range:
    if run.tensor_parallel == 1:
        return _gib(0.05, 0.1, 0.5, "context and libraries: logs on CUDA and ROCm")
    if run.tensor_parallel <= 4:
        return _gib(0.2, 0.4, 1.0, "context and collectives: logs at 2 devices")
    return _gib(0.8, 1.5, 2.5, "context and collectives: logs at 8 devices")


def _output_buffer(shape: ModelShape) -> Range:
    logits = 512 * shape.vocab_size * 4
    return Range(low=0, expected=logits // 2, high=logits, source="logits of a micro-batch")


def _gib(low: float, expected: float, high: float, source: str) -> Range:
    return Range(low=round(low * GIB), expected=round(expected * GIB), high=round(high * GIB), source=source)
