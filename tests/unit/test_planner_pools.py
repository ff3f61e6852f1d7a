"""Pools of other engines: versions of vLLM, SGLang's two pools, llama.cpp's cells, capacity at lengths."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.core.errors import ConfigError
from kvasir.planner.engines import EngineName, find_engine, vllm_rule
from kvasir.planner.kv_groups import StoreDtype, StoreFormat, bytes_per_token, kv_groups
from kvasir.planner.lengths import parse_lengths, sample_lengths
from kvasir.planner.llama_cpp_pool import (
    LlamaCppSettings,
    largest_context,
    llama_cpp_buffers,
    llama_cpp_pool,
    llama_cpp_view,
)
from kvasir.planner.pool import Pool, Resource
from kvasir.planner.sglang_pool import SglangSettings, sglang_pool, static_pool_bytes
from kvasir.planner.sources import find_model_card
from kvasir.planner.vllm_pool import VllmRule, VllmSettings, swap_blocks, vllm_pool

GIB, MIB = 1 << 30, 1 << 20
LENGTHS = (parse_lengths("lognormal:1000,5000"), parse_lengths("lognormal:200,800"))


def card(name):
    shape = find_model_card(name)
    assert shape is not None
    return shape


def vllm(name, kv_bytes, rule=VllmRule.V1_CONCURRENCY, context=32_768, batched=8192, **form):
    model = VllmSettings(max_model_len=context, max_num_batched_tokens=batched, rule=rule)
    return vllm_pool(card(name), StoreFormat(**form), model, kv_bytes)


@pytest.mark.parametrize(
    ("version", "rule"),
    [
        ("0.6.3", VllmRule.V0),
        ("0.8.x (V0)", VllmRule.V0),
        ("0.8.5 (V1)", VllmRule.V1),
        ("0.9.x dev (V0)", VllmRule.V0),
        ("0.11.0", VllmRule.V1),
        ("v0.20.2", VllmRule.V1),
        ("0.21", VllmRule.V1_CONCURRENCY),
        ("1.0", VllmRule.V1_CONCURRENCY),
        ("V1", VllmRule.V1),
    ],
)
def test_versions_have_rules(version, rule):
    assert vllm_rule(version) is rule


def test_what_is_no_version_or_engine_is_refused():
    with pytest.raises(ConfigError, match="not a version"):
        vllm_rule("latest")
    with pytest.raises(ConfigError, match=r"llama\.cpp"):
        find_engine("tgi")
    assert find_engine("llamacpp") is find_engine("Llama.cpp") is EngineName.LLAMA_CPP


def test_a_uniform_model_has_the_same_blocks_in_every_version():
    pools = [vllm("llama-3.1-8b", 40 * GIB, rule) for rule in VllmRule]
    assert {pool.num_blocks for pool in pools} == {(40 * GIB // (16 * 131_072),)}
    assert {pool.printed_tokens for pool in pools} == {327_680}


def test_v0_gives_windows_the_whole_context():
    old, new = vllm("gemma-3-27b", 40 * GIB, VllmRule.V0), vllm("gemma-3-27b", 40 * GIB, VllmRule.V1)
    assert old.num_sequences(32_768) < 0.45 * new.num_sequences(32_768)


def test_a_window_that_covers_the_context_saves_nothing():
    pool = vllm("gemma-3-27b", 40 * GIB, VllmRule.V1, context=512)
    assert pool.num_sequences(512) == pytest.approx(pool.num_blocks[0] / (32 + 6 * 33))


def test_more_batched_tokens_shrink_a_hybrids_context_and_nothing_else():
    small, large = vllm("gemma-4-26b-a4b", 4 * GIB, batched=2048), vllm("gemma-4-26b-a4b", 4 * GIB, batched=8192)
    assert large.num_sequences(32_768) < small.num_sequences(32_768)
    assert vllm("llama-3.1-8b", 4 * GIB, batched=2048).num_sequences(8192) == vllm(
        "llama-3.1-8b", 4 * GIB, batched=8192
    ).num_sequences(8192)


def test_a_latent_pool_is_the_same_on_every_device():
    assert vllm("deepseek-v3", 40 * GIB, tensor_parallel=8).num_blocks == vllm("deepseek-v3", 40 * GIB).num_blocks
    assert vllm("llama-3.1-8b", 40 * GIB, tensor_parallel=8).num_blocks[0] == 40 * GIB // (16 * 131_072 // 8)


def test_blocks_grow_until_they_hold_a_recurrent_state():
    pool = vllm("qwen3.5-2b", int(5.95 * GIB), VllmRule.V1, context=262_144)
    assert pool.block_size == 544  # as that version logs it for this geometry
    assert pool.printed_concurrency == pytest.approx(1.97, abs=0.005)


def test_the_swap_pool_gives_the_bytes_of_a_block():
    assert swap_blocks(card("llama-3.1-8b"), StoreFormat()) == 2048
    assert swap_blocks(card("llama-3.1-8b"), StoreFormat(k_dtype=StoreDtype.FP8, v_dtype=StoreDtype.FP8)) == 4096


def test_too_little_memory_for_a_block_is_refused():
    with pytest.raises(ConfigError, match="less than one block"):
        vllm("llama-3.1-8b", MIB)


def test_pages_that_cannot_be_made_equal_are_refused():
    with pytest.raises(ConfigError, match="pages of one size"):
        vllm("deepseek-v3.2", 40 * GIB)


def test_sglang_splits_between_full_and_sliding_slots():
    shape = card("gpt-oss-20b")
    pool = sglang_pool(shape, StoreFormat(), SglangSettings(), 10 * GIB)
    full, sliding = pool.num_blocks
    assert sliding == int(0.8 * full)
    half = bytes_per_token(kv_groups(shape, StoreFormat())) / 2  # as many layers of each kind
    assert full == int(10 * GIB / (half * 1.8))
    assert full * half + sliding * half <= 10 * GIB


def test_sglang_pages_round_down_and_static_memory_leaves_the_rest_free():
    pool = sglang_pool(card("llama-3.1-8b"), StoreFormat(), SglangSettings(page_size=64), GIB)
    assert pool.num_blocks == (8192,)
    assert static_pool_bytes(80 * GIB, 60 * GIB, 0.88) == pytest.approx((60 - 9.6) * GIB, abs=2)


@pytest.mark.parametrize(("parallel", "cells"), [(1, 768), (4, 1024), (8, 1536), (200, 8192)])
def test_the_sliding_cache_grows_with_the_slots(parallel, cells):
    settings_ = LlamaCppSettings(context=8192, parallel=parallel)
    full, sliding = sorted(
        llama_cpp_buffers(card("gpt-oss-20b"), StoreFormat(), settings_), key=lambda buffer: buffer.is_sliding
    )
    assert (full.num_cells, sliding.num_cells) == (8192, cells)


def test_separate_slots_have_their_own_cells():
    apart = LlamaCppSettings(context=8192, parallel=4, is_unified=False)
    full, sliding = sorted(
        llama_cpp_buffers(card("gpt-oss-20b"), StoreFormat(), apart), key=lambda buffer: buffer.is_sliding
    )
    assert full.num_cells == 8192
    assert sliding.num_cells == 4 * 768
    pool = llama_cpp_pool(card("gpt-oss-20b"), StoreFormat(), apart)
    assert pool.num_sequences(2048) == 4
    assert pool.num_sequences(2049) == 0


def test_windows_that_llama_cpp_ignores_and_the_full_size_switch():
    assert not llama_cpp_view(card("mistral-7b-v0.1")).windows
    assert llama_cpp_view(card("gemma-3-27b")).windows == (1024,)
    whole = LlamaCppSettings(context=8192, parallel=1, is_swa_full=True)
    assert {b.num_cells for b in llama_cpp_buffers(card("gpt-oss-20b"), StoreFormat(), whole)} == {8192}


@pytest.mark.parametrize("kv_bytes", [300 * MIB, 3 * GIB])
def test_the_largest_context_fits_and_one_step_more_does_not(kv_bytes):
    shape, slots = card("gpt-oss-20b"), LlamaCppSettings(context=256, parallel=2)
    most = largest_context(shape, StoreFormat(), slots, kv_bytes)
    sizes = [
        sum(b.num_bytes for b in llama_cpp_buffers(shape, StoreFormat(), LlamaCppSettings(context=c, parallel=2)))
        for c in (most, most + 256)
    ]
    assert sizes[0] <= kv_bytes < sizes[1]


def test_slots_without_a_token_are_refused():
    with pytest.raises(ConfigError, match="none would have a token"):
        LlamaCppSettings(context=4, parallel=8)


def block_pool(num_blocks=1000, size=16):
    resource = Resource(name="blocks", capacity=num_blocks, cost=lambda n: -(-n // size))
    return Pool(num_bytes=num_blocks, block_size=size, resources=(resource,))


def test_short_requests_fit_many_times_when_paged():
    sample = sample_lengths(*LENGTHS, 32_768)
    pool = block_pool(20_000)
    assert pool.num_contiguous(32_768) == pytest.approx(20_000 / 2048)
    assert pool.num_expected(sample) > 8 * pool.num_contiguous(32_768)


def test_equal_lengths_need_no_reserve_for_chance():
    sample = sample_lengths(parse_lengths("1000"), parse_lengths("1"), 4096)
    assert set(sample.held_lengths) == {1001}
    assert block_pool(6300).num_expected(sample) == pytest.approx(100)


def test_spread_lengths_keep_a_reserve():
    sample = sample_lengths(*LENGTHS, 32_768)
    pool = block_pool(5000)
    mean = sum(-(-n // 16) * w for n, w in zip(sample.held_lengths, sample.weights, strict=True))
    count = pool.num_expected(sample)
    assert count < 5000 / mean
    second = sum((-(-n // 16)) ** 2 * w for n, w in zip(sample.held_lengths, sample.weights, strict=True))
    deviation = (second - mean**2) ** 0.5
    assert count * mean + 2.326 * count**0.5 * deviation == pytest.approx(5000)


def test_a_shared_prefix_is_held_once():
    sample = sample_lengths(*LENGTHS, 32_768, 1600)
    pool = block_pool(20_000)
    alone, shared = pool.num_expected(sample), pool.num_expected(sample, 1600)
    assert shared > 1.3 * alone
    assert pool.num_expected(sample, 15) == alone  # not one whole block


def test_slots_limit_what_memory_allows():
    pool = Pool(num_bytes=1, block_size=16, resources=block_pool(10**6).resources, max_sequences=4)
    assert pool.num_sequences(16) == 4


@settings(max_examples=60, deadline=None)
@given(
    blocks=st.integers(10, 10**5), more=st.integers(1, 10**5), context=st.integers(100, 10**5), seed=st.integers(0, 3)
)
def test_more_memory_never_holds_less(blocks, more, context, seed):
    sample = sample_lengths(*LENGTHS[:: 1 if seed % 2 else -1], context)
    small, large = block_pool(blocks), block_pool(blocks + more)
    assert small.num_expected(sample) <= large.num_expected(sample)
    assert small.num_expected(sample) >= small.num_contiguous(context) * 0.2 or small.num_contiguous(context) < 5
    assert small.num_sequences(context) <= large.num_sequences(context)


@pytest.mark.parametrize(("text", "mean"), [("900", 900), ("uniform:100-300", 200), ("lognormal:1000,1000.01", 1000)])
def test_lengths_are_read(text, mean):
    assert parse_lengths(text).mean == pytest.approx(mean, rel=1e-3)


def test_a_lognormal_has_its_median_and_95th_percentile():
    found = parse_lengths("lognormal:600,4000")
    assert found.quantile(0.5) == 600
    assert found.quantile(0.95) == 4000


@pytest.mark.parametrize("text", ["", "many", "0", "-5", "uniform:9-3", "lognormal:500,100", "normal:1,2", "uniform:5"])
def test_what_is_no_distribution_is_refused(text):
    with pytest.raises(ConfigError, match="not a length distribution"):
        parse_lengths(text)


def test_a_sample_is_the_distribution_seen_at_a_random_moment():
    sample = sample_lengths(parse_lengths("100"), parse_lengths("uniform:100-300"), 10_000)
    assert sum(sample.weights) == pytest.approx(1)
    assert sample.mean_output == pytest.approx(200, rel=0.01)
    # A request is seen with weight o while it holds 100 + half of o on average: 100 + E[o^2] / 2 E[o].
    assert sample.mean_held == pytest.approx(100 + (200**2 + 200**2 / 12) / 400, rel=0.01)
    assert sample.max_total <= 400
