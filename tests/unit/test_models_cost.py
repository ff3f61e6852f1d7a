"""Costs of a step against counting one by one."""

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from weight_folders import TINY

from kvasir.engine.config import WeightDtype
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVLayout
from kvasir.kv.retention import FULL, Retention, RetentionKind, sliding, windowed
from kvasir.models.config import ModelConfig
from kvasir.models.cost import ModelCost, RowCost, kv_bytes, num_visible_pairs

LENGTHS = st.integers(min_value=0, max_value=80)


def layout_of(config: ModelConfig) -> KVLayout:
    return KVLayout.from_geometry(config.geometry, block_size=16, k_dtype=KVDtype.BF16, v_dtype=KVDtype.FP32)


def is_seen(retention: Retention, query: int, key: int) -> bool:
    """Law 2, written out once more."""
    if retention.kind is RetentionKind.WINDOW:
        block = query // 16
        return key <= query and (key < retention.sinks or key // 16 >= block - retention.window // 16)
    return key <= query and (retention.kind is RetentionKind.FULL or key > query - retention.window)


@given(num_new=LENGTHS, num_computed=LENGTHS, window=LENGTHS, sinks=st.none() | st.integers(0, 40))
def test_visible_pairs(num_new: int, num_computed: int, window: int, sinks: int | None) -> None:
    retention: Retention = sliding(window) if window else FULL
    if sinks is not None and window:
        retention = windowed(sinks=sinks, window=window).rounded(16)
    queries = range(num_computed, num_computed + num_new)
    seen = {query: [key for key in range(queries.stop) if is_seen(retention, query, key)] for query in queries}
    assert num_visible_pairs(retention, RowCost(num_new, num_computed)) == sum(map(len, seen.values()))
    assert all(retention.num_visible(query) == len(keys) for query, keys in seen.items())
    if num_new:
        assert retention.num_seen(num_computed, queries.stop) == len(set().union(*seen.values()))


def test_flops_against_a_profiler() -> None:
    config = ModelConfig.from_hf(TINY)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, attn_implementation="eager"))
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 10, dtype=torch.long))
    cost = ModelCost(config=config, weight_dtype=WeightDtype.FP32)
    dense_attention = config.num_layers * config.num_heads * 4 * config.head_dim * 10 * 10
    rope_angles = 2 * 10 * config.head_dim // 2  # transformers multiplies positions by frequencies as matrices
    linear = 10 * (cost.linear_flops_per_token + cost.head_flops_per_row)
    assert counter.get_total_flops() - dense_attention - linear in (0, rope_angles)
    causal = cost.attention_flops(layout_of(config), RowCost(10, 0))
    assert causal == dense_attention * 55 // 100


def test_a_step_adds_up() -> None:
    config = ModelConfig.from_hf(TINY | {"model_type": "mistral", "sliding_window": 20})
    layout = layout_of(config)
    cost = ModelCost(config=config, weight_dtype=WeightDtype.INT8)
    rows = (RowCost(1, 50), RowCost(7, 0))
    pairs = 20 + 28
    attention = config.num_layers * config.num_heads * 4 * config.head_dim * pairs
    assert cost.step_flops(layout, rows, 2) == 8 * cost.linear_flops_per_token + 2 * cost.head_flops_per_row + attention
    slot = config.num_layers * config.num_kv_heads * config.head_dim * (2 + 4)
    assert kv_bytes(layout, rows[0]) == (20 + 1) * slot
    assert kv_bytes(layout, rows[1]) == (7 + 7) * slot
    without_logits = cost.step_bytes(layout, rows, 0)
    assert cost.step_bytes(layout, rows, 2) - without_logits == 40 * 24 + 40 * 4 + 2 * 40 * 4
    assert without_logits > sum(kv_bytes(layout, row) for row in rows)


@pytest.mark.parametrize(
    ("weight_dtype", "num_bytes"),
    [(WeightDtype.FP32, 538_060_032), (WeightDtype.BF16, 269_100_288), (WeightDtype.INT8, 192_062_208)],
)
def test_the_embedded_models_size(weight_dtype: WeightDtype, num_bytes: int) -> None:
    entries = {
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }
    cost = ModelCost(config=ModelConfig.from_hf(entries), weight_dtype=weight_dtype)
    assert cost.num_parameters == 134_515_008
    assert cost.weight_bytes == num_bytes
