"""GGUF headers: what our own reader makes of files the gguf package writes, and of headers of foreign models."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gguf_files import CONTEXT, HEADS, HIDDEN, KV_HEADS, LAYERS, VOCAB, tiny_weights, write_gguf
from kvasir.cli.plan_request import own_config
from kvasir.core.errors import ModelError
from kvasir.models.config import load_config
from kvasir.planner.gguf_header import GgufHeader, GgufTensor, read_gguf_header
from kvasir.planner.gguf_shape import gguf_shape, read_gguf
from kvasir.planner.kv_groups import StoreFormat, bytes_per_token, find_dtype, kv_groups
from kvasir.planner.llama_cpp_pool import LlamaCppSettings, llama_cpp_buffers
from kvasir.planner.request import weight_format_of
from kvasir.planner.sources import find_model
from kvasir.planner.weight_formats import read_bytes_per_step, stored_or_reckoned_bytes


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, "llama", tiny_weights("llama"))
    return path


def test_our_reader_agrees_with_the_gguf_package(file):
    ours, theirs = read_gguf_header(file), gguf.GGUFReader(file)
    assert {t.name: t.num_bytes for t in ours.tensors} == {t.name: int(t.n_bytes) for t in theirs.tensors}
    assert {t.name: t.shape for t in ours.tensors} == {t.name: tuple(int(d) for d in t.shape) for t in theirs.tensors}
    kept = {name: value for name, value in ours.metadata.items() if not name.endswith(".length")}
    assert kept.items() <= {name: field.contents() for name, field in theirs.fields.items()}.items()


def test_a_file_is_read_to_the_byte(file):
    shape = find_model(str(file), lambda *_: None)
    assert (shape.num_layers, shape.hidden_size, shape.vocab_size) == (LAYERS, HIDDEN, VOCAB)
    assert (shape.num_heads, shape.max_context) == (HEADS, CONTEXT)
    assert bytes_per_token(kv_groups(shape, StoreFormat())) == LAYERS * KV_HEADS * 2 * (HIDDEN // HEADS) * 2
    sizes = sum(int(t.n_bytes) for t in gguf.GGUFReader(file).tensors)
    assert stored_or_reckoned_bytes(shape, weight_format_of(shape)) == sizes
    assert shape.num_parameters == sum(array.size for array in tiny_weights("llama").values())
    everything = sizes * (1 - shape.embedding_parameters / shape.num_parameters)
    assert read_bytes_per_step(shape, weight_format_of(shape), 1) == pytest.approx(everything, rel=0.02)


def test_the_header_alone_is_enough(file, tmp_path):
    data_at = gguf.GGUFReader(file).data_offset
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:data_at])
    assert read_gguf(cut).stored_weight_bytes == read_gguf(file).stored_weight_bytes


@pytest.mark.parametrize("length", [3, 8, 30, 500])
def test_a_cut_header_is_refused(file, tmp_path, length):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:length])
    with pytest.raises(ModelError, match=r"cut short|does not begin|GGUF"):
        read_gguf(cut)


def test_what_is_no_gguf_is_refused(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ModelError, match="does not begin with GGUF"):
        read_gguf(path)
    path.write_bytes(b"GGUF" + struct.pack("<I", 1) + bytes(100))
    with pytest.raises(ModelError, match="version 1"):
        read_gguf(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1))
    with pytest.raises(ModelError, match="broken"):
        read_gguf(path)


def test_our_engine_would_read_the_same_config(file, tmp_path):
    from kvasir.models.gguf import convert_gguf

    convert_gguf(file, tmp_path)
    assert own_config(str(file)).geometry == load_config(tmp_path).geometry


def header(architecture: str, num_layers: int, tensors: tuple[GgufTensor, ...] = (), **values: Any) -> GgufHeader:
    base = {"block_count": num_layers, "embedding_length": 2048, "context_length": 8192}
    base |= {"attention.head_count": 16}
    metadata = {f"{architecture}.{key}": value for key, value in (base | values).items()}
    embedding = GgufTensor(name="token_embd.weight", shape=(2048, 1000), num_bytes=2048 * 1000 * 2)
    return GgufHeader(metadata={"general.architecture": architecture, **metadata}, tensors=(embedding, *tensors))


def windows(shape):
    return [layer.caches[0].window if layer.caches else None for layer in shape.layers]


def test_windows_by_pattern_and_by_family():
    listed = header(
        "gemma4",
        4,
        **{"attention.sliding_window": 1024, "attention.head_count_kv": 8},
        **{"attention.sliding_window_pattern": [True, True, False, True]},
    )
    assert windows(gguf_shape(listed, "x")) == [1024, 1024, None, 1024]
    known = header("gpt-oss", 4, **{"attention.sliding_window": 128, "attention.head_count_kv": 8})
    assert windows(gguf_shape(known, "x")) == [128, None, 128, None]
    ignored = header("phi3", 2, **{"attention.sliding_window": 2047, "attention.head_count_kv": 32})
    assert windows(gguf_shape(ignored, "x")) == [None, None]


def test_heads_and_widths_may_differ_between_layers():
    values = {"attention.sliding_window": 1024, "attention.head_count_kv": [8, 1], "attention.key_length": 512}
    values |= {"attention.value_length": 512, "attention.key_length_swa": 256, "attention.value_length_swa": 256}
    shape = gguf_shape(header("gemma4", 2, **values, **{"attention.sliding_window_pattern": [True, False]}), "x")
    assert [(c.num_kv_heads, c.k_dim) for c in shape.held_caches()] == [(8, 256), (1, 512)]


def test_layers_that_share_hold_nothing():
    values = {"attention.head_count_kv": 2, "attention.shared_kv_layers": 18}
    assert gguf_shape(header("gemma4", 42, **values), "x").num_kv_layers == 24


def test_an_old_deepseek_file_stores_every_head_decompressed():
    values = {"attention.head_count_kv": 16, "attention.key_length": 192, "attention.value_length": 128}
    values |= {"attention.kv_lora_rank": 512}
    projection = GgufTensor(name="blk.0.attn_kv_b.weight", shape=(512, 4096), num_bytes=512 * 4096)
    old = gguf_shape(header("deepseek2", 27, (projection,), **values), "x")
    new = gguf_shape(
        header(
            "deepseek2",
            27,
            **{"attention.head_count_kv": 1, "attention.key_length": 576},
            **{"attention.value_length": 512, "attention.key_length_mla": 192},
        ),
        "x",
    )
    fp16 = find_dtype("fp16")
    form = StoreFormat(k_dtype=fp16, v_dtype=fp16)
    (buffer,) = llama_cpp_buffers(old, form, LlamaCppSettings(context=16_384, parallel=8))
    assert buffer.num_bytes == 4320 << 20  # as logged
    assert bytes_per_token(kv_groups(new, form)) * 8 < bytes_per_token(kv_groups(old, form))
    assert any("decompressed" in note for note in old.notes)


def test_recurrent_layers_keep_a_state():
    values = {"attention.head_count_kv": 2, "full_attention_interval": 4, "ssm.state_size": 128}
    values |= {"ssm.inner_size": 4096, "ssm.group_count": 16, "ssm.conv_kernel": 4}
    shape = gguf_shape(header("qwen35", 8, **values), "x")
    assert shape.num_kv_layers == 2
    assert shape.layers[0].state_bytes == 3 * (4096 + 2 * 16 * 128) * 4 + 4096 * 128 * 4


def test_experts_are_counted_apart():
    experts = GgufTensor(name="blk.0.ffn_up_exps.weight", shape=(2048, 512, 64), num_bytes=2048 * 512 * 64)
    attention = GgufTensor(name="blk.0.attn_q.weight", shape=(2048, 2048), num_bytes=2048 * 2048)
    values = {"attention.head_count_kv": 4, "expert_count": 64, "expert_used_count": 6}
    parameters = gguf_shape(header("qwen3moe", 1, (experts, attention), **values), "x").layers[0].parameters
    assert (parameters.expert, parameters.num_experts, parameters.num_active_experts) == (2048 * 512, 64, 6)
    assert parameters.attention == 2048 * 2048


def test_a_header_without_the_needed_numbers_is_refused():
    with pytest.raises(ModelError, match="block_count"):
        gguf_shape(GgufHeader(metadata={"general.architecture": "llama"}, tensors=()), "x")
    no_embedding = GgufHeader(metadata=header("llama", 1, **{"attention.head_count_kv": 1}).metadata, tensors=())
    with pytest.raises(ModelError, match="token_embd"):
        gguf_shape(no_embedding, "x")


def test_a_type_without_a_known_size_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("a.weight", np.zeros((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = bytearray((tmp_path / "x.gguf").read_bytes())
    at = data.index(b"a.weight") + len("a.weight") + 4 + 2 * 8
    data[at : at + 4] = struct.pack("<I", 99)
    (tmp_path / "y.gguf").write_bytes(bytes(data))
    with pytest.raises(ModelError, match="type 99"):
        read_gguf_header(tmp_path / "y.gguf")
