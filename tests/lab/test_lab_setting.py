"""Settings as a person writes them, and the plan they make."""

from pathlib import Path

import pytest

from kvasir.core.errors import ConfigError
from kvasir.lab.opening import LabPlan, open_lab
from kvasir.lab.setting import Setting, parse_flags, parse_setting
from kvasir.lab.texts import text_files


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("a=kv_cache_dtype:bf16", {"kv_cache_dtype": "bf16"}),
        ("a=kv-cache-dtype:bf16,block_size:32", {"kv_cache_dtype": "bf16", "block_size": "32"}),
        ("a = block_size : 32 , weight_dtype:fp32", {"block_size": "32", "weight_dtype": "fp32"}),
        ("a=kv_cache_dtype:k=int8,v=int4,block_size:64", {"kv_cache_dtype": "k=int8,v=int4", "block_size": "64"}),
        ("a=model:/a/b,c,block_size:16", {"model": "/a/b,c", "block_size": "16"}),
        ("a=gpu_memory_utilization:0.4", {"gpu_memory_utilization": "0.4"}),
    ],
)
def test_flags_of_a_setting(text, flags):
    assert parse_setting(text) == Setting(name="a", flags=flags)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "https://example.test/v1?x=1,2"])
def test_a_server_is_a_setting(url):
    setting = parse_setting(f"there={url}")
    assert setting.base_url == url and not setting.is_local


@pytest.mark.parametrize("text", ["kv_cache_dtype:bf16", "=block_size:16", "a=", "a"])
def test_what_is_no_setting_is_refused(text):
    with pytest.raises(ConfigError, match="is not NAME="):
        parse_setting(text)


@pytest.mark.parametrize("text", ["bf16", "block_size:16,blok_size:32", "block_size:16,block_size:32"])
def test_flags_that_cannot_be_meant_are_refused(text):
    with pytest.raises(ConfigError, match=r"is not flag:value|twice"):
        parse_flags(text)


def test_a_nested_value_keeps_its_commas_and_colons():
    """Any flag of the engine works as it is written for `kvasir serve`, whatever its value looks like."""
    flags = parse_flags("scheduling_policy:window:sinks=4,window=1024,block_size:16")
    assert flags == {"scheduling_policy": "window:sinks=4,window=1024", "block_size": "16"}


def test_a_plan_needs_settings_with_names_of_their_own():
    with pytest.raises(ConfigError, match="nothing to measure"):
        LabPlan(settings=())
    with pytest.raises(ConfigError, match="'16-bit' is taken"):
        LabPlan(settings=(Setting(name="16-bit"),))
    with pytest.raises(ConfigError, match="'a' is taken"):
        LabPlan(settings=(Setting(name="a"), Setting(name="a")))


def test_a_context_that_questions_alone_would_fill_is_refused(induction_model):
    plan = LabPlan(settings=(Setting(name="a"),), shared={"model": str(induction_model), "max_model_len": "200"})
    with pytest.raises(ConfigError, match="at least 512 tokens, and it is 200"):
        open_lab(plan)


def test_a_folder_of_texts_leaves_out_what_calibrations_read(tmp_path, monkeypatch):
    for name in ("wiki.test.raw", "wiki.valid.raw", "wiki.train.raw", "book.txt", "notes.md"):
        (tmp_path / name).write_text("text")
    monkeypatch.setenv("KVASIR_DATA", str(tmp_path))
    assert [file.name for file in text_files([])] == ["book.txt", "wiki.test.raw"]
    assert text_files([Path("own.txt")]) == [Path("own.txt")]
    monkeypatch.delenv("KVASIR_DATA")
    assert text_files([]) == []
    monkeypatch.setenv("KVASIR_DATA", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="not a folder"):
        text_files([])
