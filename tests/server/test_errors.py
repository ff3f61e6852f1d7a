"""Refusals over HTTP: OpenAI's error bodies, the right status, and an engine that never notices."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from live_server import LiveServer

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def engine_unaffected(live_server: LiveServer) -> Iterator[None]:
    """Whatever was refused, the engine admitted nothing and is well."""
    admitted = live_server.metric("kvasir:requests_admitted_total")
    yield
    assert live_server.metric("kvasir:requests_admitted_total") == admitted
    assert httpx.get(live_server.url + "/health").json()["status"] == "ok"


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"] and error["message"][0] != "{"
    return error


def test_a_body_that_is_not_json(live_server: LiveServer) -> None:
    error = error_of(live_server.post(CHAT, "{not json"), 400)
    assert error["type"] == "invalid_request_error" and "not valid JSON" in error["message"]


def test_an_unknown_field_counts_as_refused(live_server: LiveServer) -> None:
    before = live_server.metric("kvasir:requests_refused_total", code="invalid_request")
    error = error_of(live_server.post(CHAT, {"messages": MESSAGES, "temprature": 1}), 400)
    assert error["param"] == "temprature" and "did you mean temperature?" in error["message"]
    assert live_server.metric("kvasir:requests_refused_total", code="invalid_request") == before + 1


def test_an_unknown_model(live_server: LiveServer) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        live_server.client().chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.code == "model_not_found"
    assert error_of(httpx.get(live_server.url + "/v1/models/gpt-9"), 404)["code"] == "model_not_found"


def test_an_unknown_route_and_method(live_server: LiveServer) -> None:
    assert error_of(httpx.get(live_server.url + "/v1/embeddings"), 404)["code"] == "not_found"
    assert error_of(httpx.get(live_server.url + CHAT), 405)["code"] == "method_not_allowed"


def test_settings_out_of_range_and_out_of_vocabulary(live_server: LiveServer) -> None:
    for field, value in (("temperature", -1), ("n", 1000), ("stop_token_ids", [49152]), ("logit_bias", {"-1": 0})):
        assert error_of(live_server.post(CHAT, {"messages": MESSAGES, field: value}), 400)["param"] == field
    too_many = error_of(live_server.post(CHAT, {"messages": MESSAGES, "n": 5}), 400)
    assert too_many["param"] == "n" and "--max-num-seqs" in too_many["message"]


def test_priority_on_a_server_that_has_none(live_server: LiveServer) -> None:
    error = error_of(live_server.post(CHAT, {"messages": MESSAGES, "priority": 3}), 400)
    assert error["param"] == "priority" and "--scheduling-policy priority" in error["message"]


def test_a_stream_is_refused_with_a_status_too(live_server: LiveServer) -> None:
    response = live_server.post("/v1/completions", {"prompt": [1] * 600, "stream": True})
    assert error_of(response, 400)["code"] == "context_length_exceeded"


def test_an_empty_prompt(live_server: LiveServer) -> None:
    assert error_of(live_server.post("/v1/completions", {"prompt": ""}), 400)["param"] == "prompt"


def test_a_body_over_the_limit(live_server: LiveServer) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * (17 << 20)}]})
    assert error_of(live_server.post(CHAT, body), 413)["code"] == "request_too_large"


def test_a_body_over_the_limit_that_does_not_say_its_length(live_server: LiveServer) -> None:
    parts = (b"x" * (1 << 20) for _ in range(18))
    response = httpx.post(live_server.url + CHAT, content=parts, timeout=60)
    assert error_of(response, 413)["code"] == "request_too_large"


def test_a_length_over_the_limit_is_refused_before_the_body_is_sent(live_server: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", live_server.port), timeout=20) as connection:
        connection.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {17 << 20}\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert connection.recv(64).startswith(b"HTTP/1.1 413 ")


def test_an_error_after_the_first_byte_is_an_event(live_server: LiveServer) -> None:
    """What the client library makes of it; the engine's death mid-stream is in test_lifecycle."""
    import asyncio

    from kvasir.core.errors import KvasirError
    from kvasir.server.sse import EventStream

    async def events() -> Any:
        yield b'data: {"choices": []}\n\n'
        raise KvasirError("the sky fell")

    ended: list[bool] = []
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    stream = EventStream(events(), lambda: ended.append(True), {})
    asyncio.run(stream({"type": "http", "path": "/"}, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    lines = body.decode().split("\n\n")
    assert json.loads(lines[1].removeprefix("data: "))["error"]["message"] == "the sky fell"
    assert lines[2:] == ["data: [DONE]", ""] and not sent[-1]["more_body"] and ended == [True]
