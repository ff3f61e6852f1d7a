"""``kvasir plan`` from options to output: models by every name, machines, logs, prices, refusals."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvasir.cli.main import make_app
from kvasir.core.errors import KvasirError
from kvasir.engine.memory import MemoryLimits
from kvasir.hardware.this_machine import this_machine

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
    "max_position_embeddings": 2048,
}


def invoke(*arguments: str) -> Any:
    result = CliRunner().invoke(make_app(["plan"]), ["plan", *arguments])
    if isinstance(result.exception, KvasirError):
        raise result.exception
    return result


def planned(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "my-model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA))
    return path


def test_tables_for_people():
    result = invoke("llama-3.1-8b", "--hardware", "a100", "--shared-prefix", "1000", "--engine-version", "0.18")
    assert result.exit_code == 0, result.output
    for words in (
        "8.03 billion",
        "128.0 KiB",
        "1 x A100-80, vllm 0.18",
        "Cheapest devices",
        "vllm serve",
        "llama-server",
    ):
        assert words in result.stdout


def test_a_folder_a_config_and_a_name_are_the_same_model(folder):
    found = [
        planned(str(path), "--hardware", "L4")["model"]
        for path in (folder, folder / "config.json", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b")
    ]
    for model in found:
        assert model["num_parameters"] == 1_100_048_384
        assert model["kv_bytes_per_token_per_device"] == 22_528


def test_weights_of_a_folder_are_those_of_its_files(folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1_234_567_890}}))
    assert planned(str(folder), "--hardware", "L4")["model"]["weight_bytes"] == 1_234_567_890
    header = b'{"a":{"dtype":"U8","shape":[10],"data_offsets":[0,10]}}'
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(10))
    assert planned(str(folder), "--hardware", "L4")["model"]["weight_bytes"] == 10
    asked_for = planned(str(folder), "--hardware", "L4", "--weight-dtype", "fp32")["model"]["weight_bytes"]
    assert asked_for == 4 * 1_100_048_384


def test_a_hub_id_is_read_from_its_config(monkeypatch, folder):
    asked: list[tuple[str, str]] = []

    def download(model_id: str, name: str) -> str:
        from huggingface_hub.errors import EntryNotFoundError

        asked.append((model_id, name))
        if name != "config.json":
            raise EntryNotFoundError("no such file")
        return str(folder / name)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    model = planned("somebody/their-model", "--hardware", "L4")["model"]
    assert (model["name"], model["source"]) == ("somebody/their-model", "Hugging Face config.json")
    assert {name for _, name in asked} == {"config.json", "model.safetensors.index.json"}


def test_without_a_network_the_refusal_says_what_works(monkeypatch):
    from huggingface_hub.errors import LocalEntryNotFoundError

    def refuse(*_: str) -> str:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)
    with pytest.raises(KvasirError, match="--list-models"):
        invoke("somebody/their-model")


def test_the_load_is_what_was_asked():
    options = ["--users", "7", "--prompt-tokens", "uniform:100-300", "--output-tokens", "64", "--shared-prefix", "50"]
    said = planned("llama-3.1-8b", "--hardware", "L40S", *options)["assumptions"]
    assert (said["users"], said["prompt_tokens"], said["output_tokens"]) == (7, "uniform:100-300", "64")
    assert said["hit_rate"] == pytest.approx(50 / 250)


def test_formats_devices_and_memory_are_what_was_asked():
    options = [
        "--kv-cache-dtype",
        "q8_0,q4_0",
        "--engine",
        "llama.cpp",
        "--weight-dtype",
        "q4_k_m",
        "--context",
        "8192",
    ]
    said = planned("llama-3.1-8b", "--hardware", "4090", *options)
    assert (said["assumptions"]["k_dtype"], said["assumptions"]["v_dtype"]) == ("q8_0", "q4_0")
    assert said["assumptions"]["max_model_len"] == 8192
    two = planned("llama-3.1-8b", "--hardware", "L4", "--tp", "2", "--memory-utilization", "0.8", "--block-size", "32")
    assert two["chosen"]["devices_per_instance"] == 2
    assert two["chosen"]["pool"]["block_size"] == 32
    budget = two["chosen"]["budget_per_device"]
    assert budget["usable_bytes"] == int(budget["total_bytes"] * 0.8)


def test_a_log_is_used_and_compared(tmp_path):
    log = tmp_path / "start.log"
    log.write_text("Available KV cache memory: 51.63 GiB\nGPU KV cache size: 422,960 tokens\n")
    said = planned("llama-3.1-8b", "--hardware", "a100", "--from-log", str(log))
    assert said["chosen"]["sequences"]["safety"] == 1
    assert [entry["is_exact"] for entry in said["log_comparisons"]] == [True]
    with pytest.raises(KvasirError, match="cannot be read"):
        invoke("llama-3.1-8b", "--from-log", str(tmp_path / "none.log"))


@pytest.fixture
def small_machine(monkeypatch):
    """A machine that need not be probed."""
    limits = MemoryLimits(total_bytes=8 << 30, available_bytes=6 << 30, source="a small machine")
    card = this_machine(
        memory_bytes=limits.total_bytes, bandwidth_bytes_per_s=1e10, flops=1e11, int8_ops=4e11, source="test"
    )
    monkeypatch.setattr("kvasir.cli.plan_request._measure", lambda: card)
    monkeypatch.setattr("kvasir.cli.plan_request.available_memory", lambda: limits)


def test_a_log_of_our_own_server_is_predicted_again(tmp_path, small_machine):
    log = tmp_path / "serve.log"
    log.write_text("KV cache: 5,482 blocks of 16 tokens = 87,712 tokens = 10.7 sequences of 8,192 tokens, 1.0 GiB\n")
    said = planned("demo", "--from-log", str(log))
    assert said["assumptions"]["engine"] == "kvasir"
    assert [(c["name"], c["is_exact"]) for c in said["log_comparisons"]] == [("tokens", True), ("concurrency", True)]
    log.write_text("KV cache: 5,482 blocks of 16 tokens = 46,592 tokens = 5.7 sequences of 8,192 tokens, 1.0 GiB\n")
    assert [c["is_exact"] for c in planned("demo", "--from-log", str(log))["log_comparisons"]] == [False, False]


def test_reserving_everything_holds_fewer_at_once(small_machine):
    options = ["--kv-cache-memory", "2GiB", "--max-num-seqs", "512"]
    paged = planned("demo", *options)["chosen"]["sequences"]
    reserved = planned("demo", *options, "--kv-allocation", "contiguous", "--no-enable-prefix-caching")
    sequences = reserved["chosen"]["sequences"]
    assert sequences["worst_case"] == pytest.approx(paged["worst_case"])
    assert sequences["expected"] == pytest.approx(sequences["worst_case"])
    assert paged["planned"] > 4 * sequences["planned"]
    with pytest.raises(KvasirError, match="--no-enable-prefix-caching"):
        invoke("demo", "--kv-allocation", "contiguous")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("demo", "--tp", "2"), "--tp is not an option"),
        (("llama-3.1-8b", "--kv-cache-memory", "2GiB"), "--kv-cache-memory is not an option"),
        (("llama-3.1-8b", "--no-enable-prefix-caching"), "--enable-prefix-caching is not an option"),
        (("llama-3.1-8b", "--kv-allocation", "contiguous"), "--kv-allocation is not an option"),
    ],
)
def test_an_option_of_another_engine_is_refused(small_machine, arguments, match):
    with pytest.raises(KvasirError, match=match):
        invoke(*arguments)


def test_a_log_of_another_engine_is_refused_and_else_decides(tmp_path):
    log = tmp_path / "start.log"
    log.write_text("KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB\n")
    said = planned("llama-3.1-8b", "--hardware", "L4", "--from-log", str(log))
    assert said["assumptions"]["engine"] == "sglang"
    with pytest.raises(KvasirError, match="written by sglang, but --engine is vllm"):
        invoke("llama-3.1-8b", "--engine", "vllm", "--from-log", str(log))


def test_prices_are_the_users():
    said = planned("llama-3.1-8b", "--price", "h100=0.02", "--price", "A100-80=0.03")
    assert [entry["device"]["name"] for entry in said["device_sets"][:2]] == ["H100-SXM", "A100-80"]
    assert said["chosen"]["device"]["price_basis"] == "given"


def test_several_devices_are_tried_in_order():
    said = planned("qwen2.5-32b", "--hardware", "rtx-4070-laptop-8", "--hardware", "h200")
    assert said["chosen"]["device"]["name"] == "H200"


def test_the_report_is_one_file(tmp_path):
    path = tmp_path / "plan.html"
    result = invoke("llama-3.1-8b", "--hardware", "a100", "--html", str(path))
    assert result.exit_code == 0
    assert path.read_text().startswith("<!doctype html>")
    with pytest.raises(KvasirError, match="cannot be written"):
        invoke("llama-3.1-8b", "--hardware", "a100", "--html", str(tmp_path / "no" / "plan.html"))


def test_lists():
    assert "openai/gpt-oss-120b" in invoke("--list-models").stdout
    assert "Ascend-910B" in invoke("--list-hardware").stdout
    both = json.loads(invoke("--list-models", "--list-hardware", "--json").stdout)
    assert "H200" in both["hardware"] and "deepseek-ai/DeepSeek-V3" in both["models"]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((), "Name a model"),
        (("llama-3.1-8b", "--engine", "tgi"), "no engine"),
        (("llama-3.1-8b", "--engine-version", "new"), "not a version"),
        (("llama-3.1-8b", "--hardware", "H1000"), "No device"),
        (("llama-3.1-8b", "--prompt-tokens", "few"), "not a length distribution"),
        (("llama-3.1-8b", "--price", "H100"), "NAME=USD"),
        (("llama-3.1-8b", "--kv-cache-dtype", "int3"), "no KV format"),
        (("llama-3.1-8b", "--weight-dtype", "int3"), "no weight format"),
        (("llama-3.1-8b", "--users", "0"), "--users"),
        (("gemma-3-12b", "--engine", "kvasir"), "not served"),
        (("./nothing-here",), "no model"),
    ],
)
def test_refusals_name_what_is_wrong(arguments, match):
    with pytest.raises(KvasirError, match=match):
        invoke(*arguments)


def test_a_plan_starts_without_torch():
    code = """
import sys
sys.argv = ["kvasir", "plan", "llama-3.1-8b", "--hardware", "a100", "--json"]
from kvasir.cli.main import main
try:
    main()
except SystemExit:
    pass
print(sorted(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1]
    assert "'kvasir.planner.plan'" in loaded
    for heavy in ("'torch'", "'transformers'", "'numpy'", "'plotly'"):
        assert heavy not in loaded


def test_this_machine_is_measured():
    """The one test that probes: two seconds and a gibibyte."""
    said = planned("demo", "--kv-cache-memory", "512MiB", "--hardware", "this")
    assert said["assumptions"]["engine"] == "kvasir"
    assert said["chosen"]["device"]["memory_basis"] == "measured"
    assert said["chosen"]["device"]["bandwidth_bytes_per_s"] > 1e8
    assert said["chosen"]["pool"]["num_bytes"] == (512 << 20) // 195_840 * 195_840
