"""Shapes of foreign models: parameters against transformers and published counts, caches against what is known."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kvasir.core.errors import ConfigError, ModelError
from kvasir.kv.format_spec import KVDtype
from kvasir.planner.config_reader import read_config
from kvasir.planner.kv_groups import (
    StoreDtype,
    StoreFormat,
    bytes_per_token,
    find_any_dtype,
    find_dtype,
    find_pair,
    heads_per_device,
    held_bytes,
    kv_groups,
    read_bytes,
)
from kvasir.planner.sources import find_model, find_model_card, model_cards
from kvasir.planner.weight_formats import WEIGHT_FORMATS, find_weight_format, read_bytes_per_step, weight_bytes

GIB = 1 << 30
FAMILIES = [
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "phi3",
    "phi",
    "gpt2",
    "opt",
    "gpt_neox",
    "gptj",
    "bloom",
    "mpt",
    "falcon",
    "starcoder2",
    "stablelm",
    "olmo2",
    "olmo3",
    "olmoe",
    "cohere",
    "cohere2",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "deepseek_v2",
    "glm",
    "glm4",
    "smollm3",
    "exaone4",
    "llama4_text",
    "jamba",
    "lfm2",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "kimi_linear",
    "afmoe",
    "seed_oss",
]
NEARLY = {"gemma3n_text": 1e-3, "gemma4_text": 1e-6, "falcon_h1": 1e-5, "nemotron_h": 1e-6, "deepseek_v3": 1e-6}
"""Buffers and a few vectors apart."""


def card(name):
    shape = find_model_card(name)
    assert shape is not None, name
    return shape


def transformers_pair(family: str):
    """A family's default model on no device: its parameters as transformers builds them, and our reading."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    unique = {id(parameter): parameter.numel() for parameter in model.parameters()}
    return sum(unique.values()), read_config({"model_type": family, **config.to_dict()}, family, "test")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_is_counted(family):
    expected, shape = transformers_pair(family)
    assert shape.num_parameters == expected


@pytest.mark.parametrize("family", NEARLY)
def test_nearly_every_weight_is_counted(family):
    expected, shape = transformers_pair(family)
    assert shape.num_parameters == pytest.approx(expected, rel=NEARLY[family])


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-8b", 8.030),
        ("llama-3.1-405b", 405.85),
        ("qwen2.5-7b", 7.616),
        ("mixtral-8x7b", 46.70),
        ("gemma-3-27b", 27.01),
        ("gpt-oss-120b", 116.83),
        ("deepseek-v3", 671.03),
        ("kimi-k2", 1026.4),
        ("qwen3-30b-a3b", 30.53),
        ("falcon-40b", 41.84),
        ("starcoder2-15b", 15.96),
        ("phi-4", 14.66),
    ],
)
def test_published_counts(name, billions):
    assert card(name).num_parameters / 1e9 == pytest.approx(billions, rel=5e-4)


@pytest.mark.parametrize(
    ("name", "billions"), [("qwen3-30b-a3b", 3.0), ("gpt-oss-120b", 5.1), ("deepseek-v3", 37), ("mixtral-8x7b", 12.9)]
)
def test_active_parameters_of_mixtures(name, billions):
    assert card(name).num_active_parameters / 1e9 == pytest.approx(billions, rel=0.03)


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("llama-3.1-8b", 131_072),
        ("llama-2-7b", 524_288),
        ("qwen2.5-7b", 57_344),
        ("falcon-7b", 8_192),  # one KV head
        ("deepseek-v3", 70_272),
        ("deepseek-v3.2", 70_272 + 61 * 132),  # and the keys of its index
        ("gemma-4-e4b", 57_344),  # 24 of 42 layers hold a cache
        ("qwen3.6-27b", 65_536),  # 16 of 64 layers grow
        ("gpt-oss-20b", 49_152),
        ("kimi-linear-48b", 7 * 576 * 2),
    ],
)
def test_bytes_of_a_token(name, num_bytes):
    assert bytes_per_token(kv_groups(card(name), StoreFormat())) == num_bytes


def test_formats_with_their_metadata():
    sizes = {}
    for name in ("fp32", "bf16", "fp8", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"):
        dtype = find_dtype(name)
        groups = kv_groups(card("llama-3.1-8b"), StoreFormat(k_dtype=dtype, v_dtype=dtype))
        sizes[name] = bytes_per_token(groups) / 65_536
    assert sizes == {
        "fp32": 4,
        "bf16": 2,
        "fp8": 1,
        "q8_0": 34 / 32,
        "q5_1": 24 / 32,
        "q5_0": 22 / 32,
        "q4_1": 20 / 32,
        "q4_0": 18 / 32,
    }


def test_k_and_v_may_differ():
    groups = kv_groups(card("llama-3.1-8b"), StoreFormat(k_dtype=StoreDtype.Q8_0, v_dtype=StoreDtype.Q4_0))
    assert bytes_per_token(groups) == 32 * 8 * (128 // 32) * (34 + 18)


def test_names_of_formats():
    assert find_dtype("auto") is KVDtype.BF16
    assert find_dtype("fp8_e4m3") is StoreDtype.FP8
    with pytest.raises(ConfigError, match="q8_0"):
        find_dtype("int3")
    with pytest.raises(ConfigError, match="known are fp32, bf16, fp16"):
        find_dtype("q8_0", is_own=True)


def test_a_pair_is_written_in_three_ways():
    for text in ("q8_0,q4_0", "k=q8_0,v=q4_0", "v=q4_0, k=q8_0"):
        assert find_pair(text, find_dtype) == (StoreDtype.Q8_0, StoreDtype.Q4_0)
    assert find_pair("auto", find_dtype) == (KVDtype.BF16, KVDtype.BF16)
    for text in ("k=q8_0", "q8_0,q4_0,q4_0", "k=q8_0,k=q4_0", ",", "k=,v=q8_0"):
        with pytest.raises(ConfigError, match="k=FORMAT,v=FORMAT"):
            find_pair(text, find_dtype)


def test_where_no_engine_runs_yet_our_formats_count_too():
    assert find_pair("k=int8,v=int4", find_any_dtype) == (KVDtype.INT8, KVDtype.INT4)
    assert find_pair("k=fp8,v=q4_0", find_any_dtype) == (StoreDtype.FP8, StoreDtype.Q4_0)
    with pytest.raises(ConfigError, match="There is no KV format 'int3'"):
        find_any_dtype("int3")
    groups = kv_groups(card("llama-3.1-8b"), StoreFormat(k_dtype=KVDtype.INT8, v_dtype=KVDtype.INT4))
    assert bytes_per_token(groups) == 32 * 8 * (128 + 4 + 64 + 8)
    with pytest.raises(ConfigError, match="int4 does not take rows of 80"):
        replace(groups[0], k_dim=80, k_dtype=KVDtype.INT4).tile_tensors  # noqa: B018


def test_llama_cpp_formats_need_rows_of_32():
    with pytest.raises(ConfigError, match="multiple of 32"):
        bytes_per_token(kv_groups(card("phi-2"), StoreFormat(k_dtype=StoreDtype.Q8_0, v_dtype=StoreDtype.Q8_0)))


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_heads_are_split_then_replicated(tp, heads):
    assert heads_per_device(8, tp) == heads


def test_heads_that_cannot_be_split_are_refused():
    with pytest.raises(ConfigError, match="10 KV heads cannot be split over 4"):
        heads_per_device(10, 4)


def test_a_latent_is_not_split():
    whole = bytes_per_token(kv_groups(card("deepseek-v3"), StoreFormat()))
    assert bytes_per_token(kv_groups(card("deepseek-v3"), StoreFormat(tensor_parallel=8))) == whole


def test_windows_bound_what_is_held_and_read():
    shape = card("gemma-3-27b")
    groups = kv_groups(shape, StoreFormat())
    full = next(spec for spec in groups if not spec.retention.window)
    grown = held_bytes(groups, 131_072, 16) - held_bytes(groups, 65_536, 16)
    assert grown == full.bytes_per_token * 65_536
    reading = read_bytes(shape, StoreFormat(), 131_071) - read_bytes(shape, StoreFormat(), 65_535)
    assert reading == full.bytes_per_token * 65_536


def test_shared_layers_hold_nothing_but_are_read():
    shape = card("gemma-4-e4b")
    held = sum(spec.num_layers for spec in kv_groups(shape, StoreFormat()))
    assert (held, shape.num_layers) == (24, 42)
    per_full_layer = 2 * 2 * 512 * 2
    grown = read_bytes(shape, StoreFormat(), 20_000) - read_bytes(shape, StoreFormat(), 10_000)
    assert grown == 7 * per_full_layer * 10_000


def test_a_recurrent_state_is_per_sequence():
    shape = card("qwen3.5-2b")
    convolution = 3 * (2 * 2048 + 2048) * 2
    assert shape.layers[0].state_bytes == convolution + 16 * 128 * 128 * 4
    assert shape.state_bytes == 18 * shape.layers[0].state_bytes
    assert shape.layers[3].state == () and shape.layers[3].caches


@pytest.mark.parametrize(
    ("name", "form", "gib", "tolerance"),
    [
        ("llama-3.1-8b", "bf16", 14.99, 0.003),  # as vLLM logs them
        ("qwen3-30b-a3b", "bf16", 56.88, 0.001),
        ("qwen2.5-1.5b", "bf16", 2.88, 0.002),
        ("qwen2.5-0.5b", "nf4", 0.52, 0.2),
        ("phi-4", "nf4", 8.63, 0.05),
        ("gpt-oss-20b", "mxfp4", 13.72, 0.08),
        ("llama-3.1-70b", "fp8", 67.7, 0.02),
    ],
)
def test_weights_are_what_engines_log(name, form, gib, tolerance):
    assert weight_bytes(card(name), find_weight_format(form)) / GIB == pytest.approx(gib, rel=tolerance)


def test_fewer_bits_are_fewer_bytes():
    shape = card("llama-3.1-70b")
    ordered = sorted(WEIGHT_FORMATS.values(), key=lambda form: form.bits)
    sizes = [weight_bytes(shape, form) for form in ordered if not form.experts_only]
    assert sizes[0] < sizes[-1]
    assert weight_bytes(shape, find_weight_format("fp32")) == 4 * shape.num_parameters


def test_a_step_reads_the_experts_it_hits():
    shape, form = card("qwen3-30b-a3b"), find_weight_format("bf16")
    one, many = read_bytes_per_step(shape, form, 1), read_bytes_per_step(shape, form, 4096)
    assert one == pytest.approx(2 * shape.num_active_parameters, rel=0.02)
    assert many == pytest.approx(2 * (shape.num_parameters - shape.embedding_parameters), rel=0.001)
    dense = card("llama-3.1-8b")
    assert read_bytes_per_step(dense, form, 1) == read_bytes_per_step(dense, form, 64)


@pytest.mark.parametrize("entry", model_cards(), ids=lambda entry: entry["name"])
def test_every_built_in_model_is_read(entry):
    shape = card(entry["name"])
    assert shape.num_parameters > 1e8
    assert not any("not in the list" in note for note in shape.notes)
    assert bytes_per_token(kv_groups(shape, StoreFormat())) > 0
    for alias in entry["aliases"]:
        found = find_model_card(alias)
        assert found is not None and found.name == entry["name"]


def test_an_unknown_family_is_read_with_a_note():
    values = {"model_type": "brand_new", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    values |= {"num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096, "intermediate_size": 1024}
    shape = read_config(values, "new", "test")
    assert bytes_per_token(kv_groups(shape, StoreFormat())) == 4 * 2 * 2 * 64 * 2
    assert "brand_new" in shape.notes[0]


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"model_type": "t5"}, "cannot be planned"),
        ({"model_type": "bert"}, "keeps no KV cache"),
        ({"model_type": "llama", "hidden_size": 64}, "has no"),
        ({"hidden_size": 64}, "no model_type"),
        ({"model_type": "llama", "is_encoder_decoder": True}, "encoder"),
        ({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": "four"}, "whole number"),
    ],
)
def test_what_cannot_be_planned_for_is_refused(values, match):
    with pytest.raises(ModelError, match=match):
        read_config(values, "x", "test")


def test_a_text_model_inside_a_multimodal_one():
    text = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 100, "intermediate_size": 128}
    text |= {"sliding_window": 512, "max_position_embeddings": 8192}
    shape = read_config({"model_type": "gemma3", "text_config": text}, "x", "test")
    assert [cache.window for cache in shape.held_caches()] == [512] * 5 + [None]
    assert any("vision" in note for note in shape.notes)


def test_an_unknown_model_is_refused_with_close_ones():
    with pytest.raises(ModelError, match=r"Llama-3\.1-8B"):
        find_model("llama-3.1-8", lambda *_: None)


def test_the_documents_table_is_what_the_formula_says():
    text = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    rows = re.findall(r"^\| ([\w.-]+) \| [^|]+ \| ([\d,]+)[^|]* \|$", text, re.MULTILINE)
    assert len(rows) == 7
    for name, said in rows:
        assert bytes_per_token(kv_groups(card(name), StoreFormat())) == int(said.replace(",", "")), name
    (full,) = (spec for spec in kv_groups(card("gemma-3-27b"), StoreFormat()) if not spec.retention.window)
    assert f"then {full.bytes_per_token:,.0f}" in text
