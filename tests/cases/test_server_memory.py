"""Real faults of other servers, asked of ours: requests that do not fit, and pools that fill."""

import concurrent.futures
from pathlib import Path
from typing import Any

import pytest

from kvasir.core.clock import VirtualClock
from kvasir.core.errors import NeverFitsError
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.manager import KVManager, KVManagerConfig
from kvasir.scheduling.config import SchedulerConfig
from kvasir.scheduling.scheduler import Scheduler
from live_server import LiveServer, engine_settings, spawn_server


def generate(server: LiveServer, prompt: str | list[int], num_tokens: int) -> Any:
    body = {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0}
    return server.post("/v1/completions", body)


def test_M3_parallel_generations_that_overflow_the_pool_all_finish(live_server: LiveServer) -> None:
    """Four sequences that start with 32 of 36 blocks and end wanting 40: whoever does not fit waits its turn, nobody is
    aborted."""
    prompts = [[number, *range(200, 327)] for number in range(4)]
    preempted = live_server.metric("vllm:num_preemptions_total")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda prompt: generate(live_server, prompt, 32), prompts))
    for answer in answers:
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["choices"][0]["finish_reason"] == "length" and body["usage"]["completion_tokens"] == 32
    assert live_server.metric("vllm:num_preemptions_total") > preempted
    live_server.wait_idle()


def test_M4_a_request_larger_than_the_cache_says_so(live_server: LiveServer) -> None:
    """With prefix caching on: never 200 with nothing in it."""
    assert live_server.ready["effective_config"]["enable_prefix_caching"] == "on"
    answer = live_server.post("/v1/completions", {"prompt": [5] * 5000, "max_tokens": 10})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "5000" in message and "512" in message
    assert generate(live_server, "a", 2).json()["usage"]["completion_tokens"] == 2


def test_M4_the_refusal_names_needed_and_available_blocks() -> None:
    """Where the context is longer than the pool (a server refuses to start so), the door knows both numbers."""
    geometry = KVGeometry(num_layers=1, num_kv_heads=1, head_dim=16, sliding_windows=(None,))
    layout = KVLayout.from_geometry(geometry, block_size=16, k_dtype=KVDtype.BF16, v_dtype=KVDtype.BF16)
    manager = KVManager(
        KVManagerConfig(
            layout=layout,
            num_blocks=(10,),
            max_model_len=100_000,
            max_chunk_tokens=64,
            model_digest="m",
            enable_prefix_caching=True,
        )
    )
    scheduler = Scheduler(SchedulerConfig(max_num_batched_tokens=64), manager, VirtualClock())
    request = Request(request_id="r", prompt_token_ids=(1,) * 55_000, sampling=SamplingParams(max_tokens=10))
    with pytest.raises(NeverFitsError) as caught:
        scheduler.add(request)
    assert f"{(55_010 + 15) // 16} blocks" in str(caught.value) and "has 10" in str(caught.value)
    assert not scheduler.has_work


def test_H1_a_context_longer_than_the_pool_is_refused_at_start(demo_model: Path) -> None:
    """The trap is never set: the server says both numbers and does not start."""
    server = spawn_server(engine_settings(num_blocks=36, max_model_len=8192, threads=1))
    assert server.process.wait(120) == 1
    message = server.log_text
    assert message.startswith("invalid_config: ") and message.count("\n") == 1
    assert "8192" in message and "576" in message


@pytest.mark.parametrize("num_tokens", [512, 600, 5000])
def test_H1_and_H2_a_prompt_too_long_is_refused_and_the_next_one_runs(live_server: LiveServer, num_tokens: int) -> None:
    """From just over what the context can hold to far over the pool: 400 with numbers, no change of state."""
    waiting = live_server.metric("vllm:num_requests_waiting")
    answer = live_server.post("/v1/completions", {"prompt": [7] * num_tokens})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
    assert str(num_tokens) in error["message"] and "512" in error["message"]
    assert live_server.metric("vllm:num_requests_waiting") == waiting
    assert generate(live_server, "and then", 2).status_code == 200
    live_server.wait_idle()


def test_H2_prompt_plus_output_over_the_context(live_server: LiveServer) -> None:
    answer = live_server.post("/v1/completions", {"prompt": [7] * 500, "max_tokens": 13})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "max_tokens" and all(number in error["message"] for number in ("500", "13", "512", "12"))
    assert live_server.post("/v1/completions", {"prompt": [7] * 500, "max_tokens": 2}).status_code == 200
