"""Flags: every one parses, shows and defaults as the configuration says; nothing unknown or contradictory passes."""

from dataclasses import fields, is_dataclass

import pytest

from kvasir.core.errors import ConfigError
from kvasir.engine.config import EngineConfig, KernelChoice, WeightDtype
from kvasir.engine.flag import FlagKind, read_path
from kvasir.engine.flags import FLAGS, effective_flags, flags_table, make_engine_config
from kvasir.kv.allocation import AllocationKind
from kvasir.kv.eviction import EvictionKind, EvictionRule
from kvasir.kv.format_pair import FormatPair
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.retention import windowed
from kvasir.kv.sparse_read import SparseRead
from kvasir.scheduling.config import BatchingMode, QueuePolicy


def _leaves(value: object, prefix: str = "") -> set[str]:
    paths = set()
    for field in fields(value):  # type: ignore[arg-type]
        inner = getattr(value, field.name)
        path = prefix + field.name
        is_branch = is_dataclass(inner) and path not in {flag.path for flag in FLAGS}
        paths |= _leaves(inner, f"{path}.") if is_branch else {path}
    return paths


def test_every_field_of_the_configuration_has_exactly_one_flag():
    assert sorted(flag.path for flag in FLAGS) == sorted(_leaves(EngineConfig()))


def test_no_flags_is_the_default_configuration():
    assert make_engine_config() == EngineConfig()
    assert make_engine_config(max_model_len=None, seed=None) == EngineConfig()


def test_every_default_survives_being_written_and_read():
    for flag in FLAGS:
        if flag.kind is FlagKind.SIZE:
            assert flag.default is None
        else:
            assert flag.parse(flag.default_text) == flag.default, flag.name


CASES = [
    ("model", "some/folder", "model", "some/folder"),
    ("max_model_len", "4096", "max_model_len", 4096),
    ("max_model_len", "auto", "max_model_len", None),
    ("weight_dtype", "bfloat16", "weight_dtype", WeightDtype.BF16),
    ("weight_dtype", WeightDtype.FP32, "weight_dtype", WeightDtype.FP32),
    ("kv_cache_memory", "2GiB", "cache.memory.kv_cache_memory_bytes", 2 << 30),
    ("kv_cache_memory_bytes", 12345, "cache.memory.kv_cache_memory_bytes", 12345),
    ("memory_utilization", "0.25", "cache.memory.memory_utilization", 0.25),
    ("gpu_memory_utilization", 1, "cache.memory.memory_utilization", 1.0),
    ("kv_cache_dtype", "half", "cache.kv_cache_dtype", FormatPair(k=KVDtype.FP16, v=KVDtype.FP16)),
    ("kv_cache_dtype", KVDtype.FP8, "cache.kv_cache_dtype", FormatPair(k=KVDtype.FP8, v=KVDtype.FP8)),
    ("kv_cache_dtype", "v=INT4, k=int8", "cache.kv_cache_dtype", FormatPair(k=KVDtype.INT8, v=KVDtype.INT4)),
    ("kv_cache_dtype", "int8,int4", "cache.kv_cache_dtype", FormatPair(k=KVDtype.INT8, v=KVDtype.INT4)),
    ("kv_cache_dtype", "auto", "cache.kv_cache_dtype", None),
    ("kv_retention", "window:sinks=4,window=1024", "cache.kv_retention", windowed(sinks=4, window=1024)),
    ("kv_retention", "Window:window=9", "cache.kv_retention", windowed(sinks=0, window=9)),
    ("kv_retention", windowed(sinks=1, window=2), "cache.kv_retention", windowed(sinks=1, window=2)),
    ("head_profile", "some/profile.json", "cache.head_profile", "some/profile.json"),
    ("head_profile", "none", "cache.head_profile", None),
    ("block_size", 32, "cache.block_size", 32),
    ("block_size", "64", "cache.block_size", 64),
    ("enable_prefix_caching", False, "cache.enable_prefix_caching", False),
    ("enable_prefix_caching", "off", "cache.enable_prefix_caching", False),
    ("kv_allocation", "contiguous", "cache.allocation", AllocationKind.CONTIGUOUS),
    ("kv_eviction", "keydiff:keep=0.25", "cache.eviction", EvictionRule(kind=EvictionKind.KEYDIFF, keep=0.25)),
    ("kv_sparse_read", "blocks=64", "cache.sparse_read", SparseRead(num_blocks=64)),
    ("kv_sparse_read", "off", "cache.sparse_read", None),
    ("kv_eviction", "off", "cache.eviction", None),
    ("max_num_seqs", 8, "scheduler.max_num_seqs", 8),
    ("max_num_batched_tokens", "2_048", "scheduler.max_num_batched_tokens", 2048),
    ("long_prefill_token_threshold", 64, "scheduler.long_prefill_token_threshold", 64),
    ("scheduling_policy", "priority", "scheduler.policy", QueuePolicy.PRIORITY),
    ("scheduling", "STATIC", "scheduler.batching", BatchingMode.STATIC),
    ("max_waiting", 5, "scheduler.max_waiting", 5),
    ("kernels", "reference", "kernels", KernelChoice.REFERENCE),
    ("threads", 3, "threads", 3),
    ("seed", -7, "seed", -7),
]


@pytest.mark.parametrize(("name", "value", "path", "expected"), CASES)
def test_a_flag_lands_where_it_belongs_and_nowhere_else(name, value, path, expected):
    config = make_engine_config(**{name: value})
    assert read_path(config, path) == expected
    for other in _leaves(config) - {path}:
        assert read_path(config, other) == read_path(EngineConfig(), other)


def test_every_flag_has_a_case():
    assert {path for _, _, path, _ in CASES} == {flag.path for flag in FLAGS}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_modellen": 5}, "did you mean 'max_model_len'"),
        ({"quantum": 5}, "no flag 'quantum'"),
        ({"max_model_len": 0}, "--max-model-len must be at least 1, got 0"),
        ({"max_model_len": "many"}, "--max-model-len 'many': a whole number is expected"),
        ({"max_num_seqs": True}, "a whole number"),
        ({"max_num_seqs": 2.5}, "a whole number"),
        ({"memory_utilization": "most"}, "a number is expected"),
        ({"memory_utilization": 1.5}, "at most 1"),
        ({"kv_cache_memory": "lots"}, "2GiB"),
        ({"kv_cache_memory": 0}, "above 0"),
        ({"weight_dtype": "int3"}, "--weight-dtype 'int3': choose one of int8, fp32, bf16"),
        ({"kv_eviction": "h2o"}, "--kv-eviction 'h2o': there is no eviction 'h2o'"),
        ({"kv_eviction": "keydiff:keep=2"}, "at most 1, got 2"),
        ({"kv_cache_dtype": "int3"}, "no format 'int3'; choose one of auto, fp32, bf16, fp16, int8, int4, fp8, or k="),
        ({"kv_cache_dtype": "k=int8"}, "write one format for both, or k=FORMAT,v=FORMAT"),
        ({"kv_cache_dtype": "k=int8,k=int4"}, "write one format for both"),
        ({"kv_cache_dtype": "k=int8,v="}, "write one format for both"),
        ({"kv_cache_dtype": "int8,int4,int4"}, "write one format for both"),
        ({"kv_sparse_read": "64"}, "--kv-sparse-read '64': off or blocks=NUMBER"),
        ({"kv_sparse_read": "blocks=1"}, "2 is the least"),
        ({"block_size": 8}, "choose one of 16, 32, 64"),
        ({"kv_retention": "half"}, "full or window:sinks=4,window=1024 is expected"),
        ({"kv_retention": "window"}, "'' is not one of sinks=TOKENS and window=TOKENS"),
        ({"kv_retention": "window:sinks=4"}, "a window of at least 1 token is expected"),
        ({"kv_retention": "window:sinks=4,window=0"}, "a window of at least 1 token is expected"),
        ({"kv_retention": "window:window=4,window=5"}, "each once"),
        ({"kv_retention": "window:window=-5"}, "'window=-5' is not one of"),
        ({"enable_prefix_caching": "maybe"}, "on or off"),
        ({"model": ""}, "text is expected"),
        ({"threads": 0}, "at least 1"),
        ({"max_num_seqs": 600}, "--max-num-batched-tokens 512 is less than --max-num-seqs 600"),
        ({"kv_cache_memory": "1GiB", "memory_utilization": 0.3}, "both size the KV pool"),
        ({"kv_cache_memory": "1GiB", "kv_cache_memory_bytes": 5}, "given twice"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(flags, message):
    with pytest.raises(ConfigError, match=message):
        make_engine_config(**flags)


def test_flags_of_one_branch_are_checked_together():
    config = make_engine_config(max_num_seqs=600, max_num_batched_tokens=1024)
    assert config.scheduler.max_num_seqs == 600


def test_the_effective_configuration_names_every_flag():
    shown = effective_flags(make_engine_config(kv_cache_memory="2GiB", kv_cache_dtype="bf16"))
    assert list(shown) == [flag.name for flag in FLAGS]
    assert shown["kv_cache_memory"] == "2.0 GiB"
    assert shown["kv_cache_dtype"] == "bf16"
    assert shown["enable_prefix_caching"] == "on"
    assert shown["max_model_len"] == "auto"


def test_the_table_for_the_documents_has_a_row_for_every_flag():
    table = flags_table()
    for flag in FLAGS:
        assert f"| `{flag.option}` |" in table
        assert flag.help in table
