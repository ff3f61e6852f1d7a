"""The engine's own counters and gauges as Prometheus metrics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvasir.engine.stats import EngineStats

# name, help, field of EngineStats
_GAUGES = (
    ("vllm:num_requests_running", "Sequences that have a seat.", "num_running"),
    ("vllm:num_requests_waiting", "Sequences in the queue.", "num_waiting"),
    ("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 1 means all.", "kv_cache_usage"),
    ("vllm:gpu_cache_usage_perc", "vLLM's older name of kv_cache_usage_perc.", "kv_cache_usage"),
)
_COUNTERS = (
    ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", "num_prefix_queries"),
    ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", "num_prefix_hits"),
    ("vllm:prompt_tokens", "Prompt tokens of admitted requests.", "num_prompt_tokens"),
    ("vllm:generation_tokens", "Generated tokens.", "num_generated_tokens"),
    ("vllm:num_preemptions", "Sequences that lost their blocks and were computed again.", "num_preemptions"),
    ("kvasir:computed_tokens", "Tokens the model processed, recomputed ones included.", "num_computed_tokens"),
    ("kvasir:engine_steps", "Steps of the engine.", "num_steps"),
    ("kvasir:engine_step_seconds", "Time spent in steps.", "step_s_total"),
    ("kvasir:evicted_tokens", "Prompt tokens given up by --kv-eviction.", "num_evicted_tokens"),
    ("kvasir:evicted_blocks", "Blocks that came back by --kv-eviction.", "num_evicted_blocks"),
    ("kvasir:requests_admitted", "Requests the engine accepted.", "num_admitted"),
    ("kvasir:requests_aborted", "Requests ended before their time, for whatever reason.", "num_aborted"),
)
_BLOCK_STATES = ("used", "cached", "free")


def engine_metrics(stats: EngineStats, labels: dict[str, str]) -> Iterator[Metric]:
    """One family per number; ``labels`` go on every sample."""
    names, values = list(labels), list(labels.values())
    for name, text, field in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=names)
        gauge.add_metric(values, getattr(stats, field))
        yield gauge
    for name, text, field in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=names)
        counter.add_metric(values, getattr(stats, field))
        yield counter
    blocks = GaugeMetricFamily("kvasir:kv_blocks", "Blocks by group and state.", labels=[*names, "group", "state"])
    for group_id, group in enumerate(stats.groups):
        for state in _BLOCK_STATES:
            blocks.add_metric([*values, str(group_id), state], getattr(group, f"num_{state}"))
    yield blocks
    trimmed = CounterMetricFamily(
        "kvasir:kv_blocks_trimmed", "Blocks given back because no query could see them.", labels=[*names, "group"]
    )
    for group_id, group in enumerate(stats.groups):
        trimmed.add_metric([*values, str(group_id)], group.num_trimmed)
    yield trimmed
