"""What operators and their tools ask: models, version, health, metrics, cache reset."""

import re
import shutil
import subprocess

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from live_server import LiveServer

VLLM_NAMES = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:gpu_cache_usage_perc": "gauge",
    "vllm:cache_config_info": "gauge",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:request_success": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:time_per_output_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
}


def test_models(live_server: LiveServer) -> None:
    (model,) = live_server.client().models.list().data
    assert model.id == "demo" and model.owned_by == "kvasir"
    assert live_server.client().models.retrieve("demo").model_dump()["max_model_len"] == 512


def test_health(live_server: LiveServer) -> None:
    response = httpx.get(live_server.url + "/health")
    assert response.status_code == 200
    assert response.json() == {"status": "ok", "reason": None, "model": "demo"}


def test_ready_message_and_its_curl_line(live_server: LiveServer) -> None:
    ready = live_server.ready
    assert ready["capacity"]["num_blocks"] == [36] and ready["capacity"]["num_tokens"] == 576
    assert ready["capacity"]["num_sequences"] == 576 / 512
    if shutil.which("curl") is None:
        pytest.skip("this machine has no curl")
    command = ready["curl"].replace('"max_tokens": 64', '"max_tokens": 2')
    answer = subprocess.run(["sh", "-c", command + " -s"], capture_output=True, text=True, timeout=60)
    assert '"object":"chat.completion"' in answer.stdout, answer


def test_every_vllm_metric_has_its_type_and_label(live_server: LiveServer) -> None:
    live_server.post("/v1/completions", {"prompt": "a", "max_tokens": 2})
    page = httpx.get(live_server.url + "/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(page.text)}
    for name, kind in VLLM_NAMES.items():
        assert families[name].type == kind, name
        assert families[name].samples, name
        assert all(sample.labels["model_name"] == "demo" for sample in families[name].samples), name


def test_counters_count_what_happened(live_server: LiveServer) -> None:
    names = {
        "prompt": "vllm:prompt_tokens_total",
        "output": "vllm:generation_tokens_total",
        "first": "vllm:time_to_first_token_seconds_count",
        "gaps": "vllm:inter_token_latency_seconds_count",
        "ends": "vllm:e2e_request_latency_seconds_count",
    }
    before = {key: live_server.metric(name) for key, name in names.items()}
    length = live_server.metric("vllm:request_success_total", finished_reason="length")
    usage = live_server.post(
        "/v1/completions", {"prompt": "a b c", "max_tokens": 5, "n": 2, "ignore_eos": True}
    ).json()["usage"]
    after = {key: live_server.metric(name) for key, name in names.items()}
    gained = {key: after[key] - before[key] for key in names}
    assert gained == {"prompt": usage["prompt_tokens"], "output": 10, "first": 1, "gaps": 8, "ends": 1}
    assert live_server.metric("vllm:request_success_total", finished_reason="length") == length + 1


def test_blocks_add_up_in_every_group(live_server: LiveServer) -> None:
    assert sum(live_server.metric("kvasir:kv_blocks", state=state) for state in ("used", "cached", "free")) == 36
    live_server.wait_idle()
    assert live_server.metric("vllm:kv_cache_usage_perc") == 0 == live_server.metric("vllm:gpu_cache_usage_perc")


def test_prefix_cache_can_be_reset(live_server: LiveServer) -> None:
    body = {"prompt": "reset me " * 20, "max_tokens": 1, "temperature": 0}

    def num_cached() -> int:
        answer = live_server.post("/v1/completions", body).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    num_cached()
    assert num_cached() > 0
    assert live_server.post("/reset_prefix_cache", {}).json() == {"status": "ok"}
    assert num_cached() == 0
    assert num_cached() > 0


def test_answers_name_what_made_them(live_server: LiveServer) -> None:
    response = live_server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert response.headers["x-request-id"] == response.json()["id"]
    assert re.fullmatch(r"kvasir-[\w.]+-[0-9a-f]{8}-[0-9a-f]{8}", response.json()["system_fingerprint"])
