"""Real fault of another server, asked of ours: clients that go away."""

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from live_server import LiveServer

LONG = {"prompt": "Once upon a time", "max_tokens": 480, "ignore_eos": True}


@contextmanager
def raw_request(server: LiveServer, **settings: Any) -> Iterator[socket.socket]:
    """A request over a bare socket; leaving the block closes it hard (a reset, as a killed client's kernel may)."""
    body = json.dumps(LONG | settings).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    try:
        connection.sendall(head.encode() + body)
        yield connection
    finally:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def running(server: LiveServer, num: int) -> Callable[[], bool]:
    return lambda: server.metric("vllm:num_requests_running") == num


def check_gone(server: LiveServer, cancelled: float, num: int, steps: float) -> None:
    """All ``num`` counted as cancelled, every block free, and the engine did not go on to the end."""
    server.wait_for(lambda: server.metric("kvasir:requests_cancelled_total") == cancelled + num)
    server.wait_idle()
    after = server.metric("kvasir:engine_steps_total")
    time.sleep(0.3)
    assert server.metric("kvasir:engine_steps_total") == after, "the engine still computes"
    assert after - steps < 200, "the client was gone long before"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("gently", [True, False])
def test_D1_a_client_gone_during_decode(live_server: LiveServer, stream: bool, gently: bool) -> None:
    server = live_server
    cancelled = server.metric("kvasir:requests_cancelled_total")
    aborted = server.metric("vllm:request_success_total", finished_reason="abort")
    with raw_request(server, stream=stream) as connection:
        server.wait_for(running(server, 1))
        generated = server.metric("vllm:generation_tokens_total")
        server.wait_for(lambda: server.metric("vllm:generation_tokens_total") > generated + 2)
        steps = server.metric("kvasir:engine_steps_total")
        if gently:
            connection.shutdown(socket.SHUT_RDWR)
    check_gone(server, cancelled, 1, steps)
    assert server.metric("vllm:request_success_total", finished_reason="abort") == aborted + 1


@pytest.mark.parametrize("stream", [True, False])
def test_D1_a_client_gone_during_prefill(live_server: LiveServer, stream: bool) -> None:
    """480 tokens at 64 a step: it leaves before the first token.  A slow test may be too late, so it may try again."""
    server = live_server
    for attempt in range(5):
        server.wait_idle()
        cancelled = server.metric("kvasir:requests_cancelled_total")
        generated = server.metric("vllm:generation_tokens_total")
        prompt = [(13 * attempt + 7 * i + stream) % 40_000 for i in range(480)]
        with raw_request(server, prompt=prompt, max_tokens=20, stream=stream):
            server.wait_for(running(server, 1))
        server.wait_idle()
        if server.metric("vllm:generation_tokens_total") == generated:
            assert server.metric("kvasir:requests_cancelled_total") == cancelled + 1
            return
    pytest.fail("in five attempts the prefill was never cut short")


@pytest.mark.parametrize("stream", [True, False])
def test_D1_clients_gone_while_they_queue(live_server: LiveServer, stream: bool) -> None:
    """Four seats are taken; two more wait and leave; they end without a token."""
    server = live_server
    server.wait_idle()
    cancelled = server.metric("kvasir:requests_cancelled_total")
    without_output = server.metric("vllm:request_generation_tokens_bucket", le="1.0")
    with raw_request(server), raw_request(server), raw_request(server), raw_request(server):
        server.wait_for(running(server, 4))
        with raw_request(server, stream=stream), raw_request(server, stream=stream, n=2):
            server.wait_for(lambda: server.metric("vllm:num_requests_waiting") >= 2)
        server.wait_for(lambda: server.metric("kvasir:requests_cancelled_total") == cancelled + 2)
        assert server.metric("vllm:request_generation_tokens_bucket", le="1.0") == without_output + 2
        steps = server.metric("kvasir:engine_steps_total")
    check_gone(server, cancelled, 6, steps)


def test_D1_a_client_gone_before_its_body_is_complete(live_server: LiveServer) -> None:
    server = live_server
    admitted = server.metric("kvasir:requests_admitted_total")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n{")
    time.sleep(0.2)
    assert server.metric("kvasir:requests_admitted_total") == admitted
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_D1_several_prompts_of_one_request_all_end(live_server: LiveServer) -> None:
    server = live_server
    cancelled = server.metric("kvasir:requests_cancelled_total")
    with raw_request(server, prompt=["One", "Two", "Three"], stream=True):
        server.wait_for(running(server, 3))
        steps = server.metric("kvasir:engine_steps_total")
    check_gone(server, cancelled, 3, steps)
