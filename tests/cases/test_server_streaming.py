"""Real faults of other servers, asked of ours: the protocol of a stream, and fields that kill engines."""

import json
from typing import Any

import httpx
import pytest

from live_server import LiveServer

MESSAGES = [{"role": "user", "content": "Name three colours."}]


def stream(server: LiveServer, **settings: Any) -> list[dict[str, Any]]:
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 8, "stream": True} | settings
    with httpx.stream("POST", server.url + "/v1/chat/completions", json=body, timeout=60) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_O3_usage_comes_in_a_chunk_of_its_own(live_server: LiveServer) -> None:
    chunks = stream(live_server, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == 8 and usage["total_tokens"] == usage["prompt_tokens"] + 8
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks[:-1])


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {}])
def test_O3_no_usage_when_nobody_asked(live_server: LiveServer, options: dict[str, Any] | None) -> None:
    chunks = stream(live_server, stream_options=options)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


def test_O5_each_token_carries_its_own_alternatives(live_server: LiveServer) -> None:
    """Also when several tokens share a chunk: text held for a stop string brings its tokens all at once."""
    asked = {"logprobs": True, "top_logprobs": 2, "max_tokens": 12}
    body = {"messages": MESSAGES, "temperature": 0} | asked
    whole = live_server.post("/v1/chat/completions", body).json()["choices"][0]
    entries = whole["logprobs"]["content"]
    assert len({json.dumps(entry["top_logprobs"]) for entry in entries}) == len(entries) > 8
    for entry in entries:
        best = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(best) == 2 and best == sorted(best, reverse=True)
        assert entry["token"] == entry["top_logprobs"][0]["token"] and entry["logprob"] == best[0]
        assert bytes(entry["bytes"]).decode() == entry["token"]
    assert "".join(entry["token"] for entry in entries) == whole["message"]["content"]

    text = whole["message"]["content"]
    for stop in (None, text[:20] + "never"):
        chunks = [chunk["choices"][0] for chunk in stream(live_server, **asked, stop=stop)]
        parts = [choice["logprobs"]["content"] for choice in chunks if choice["logprobs"]]
        assert [entry for part in parts for entry in part] == entries
        assert (max(map(len, parts)) > 1) == (stop is not None)
        for choice in chunks:
            if choice["logprobs"] and choice["delta"].get("content"):
                assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == choice["delta"]["content"]


@pytest.mark.parametrize("streamed", [False, True])
def test_O6_a_bias_outside_the_vocabulary_is_refused_by_its_id(live_server: LiveServer, streamed: bool) -> None:
    engine = live_server.engine
    body = {"messages": MESSAGES, "logit_bias": {"191222": -100, "99999": 5}, "stream": streamed}
    answer = live_server.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "logit_bias" and "191222" in error["message"] and "49151" in error["message"]
    assert engine.is_running() and len(stream(live_server, max_tokens=2)) >= 2
    edge = live_server.post("/v1/chat/completions", {"messages": MESSAGES, "logit_bias": {"49151": 1}, "max_tokens": 1})
    assert edge.status_code == 200


def test_O9_tools_are_refused_by_name_and_the_engine_does_not_notice(live_server: LiveServer) -> None:
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    admitted = live_server.metric("kvasir:requests_admitted_total")
    for fields in ({"tools": tools}, {"tools": tools, "tool_choice": "required"}, {"tool_choice": "required"}):
        body = {"messages": MESSAGES, "stream": True, "max_tokens": 3} | fields
        answer = live_server.post("/v1/chat/completions", body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] in fields and "tool calling is not supported yet" in error["message"]
    assert live_server.metric("kvasir:requests_admitted_total") == admitted
    assert stream(live_server, tools=[], tool_choice=None, max_tokens=3)[-1]["choices"][0]["finish_reason"] == "length"
