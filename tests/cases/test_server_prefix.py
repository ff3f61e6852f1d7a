"""Real faults of other servers, asked of ours: who may share a prefix, what a turn reuses, what the counters say."""

from typing import Any

import httpx

from live_server import BLOCK_SIZE, LiveServer


def chat(server: LiveServer, content: str, **settings: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 2} | settings
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]


def num_cached(usage: dict[str, Any]) -> int:
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_P4_different_salts_share_nothing_and_the_same_salt_does(live_server: LiveServer) -> None:
    question = "What is the weather like in Boston?"
    assert num_cached(chat(live_server, question, cache_salt="aaa")) == 0
    assert num_cached(chat(live_server, question, cache_salt="bbb")) == 0
    assert num_cached(chat(live_server, question, cache_salt="aaa")) > 0
    assert num_cached(chat(live_server, question, cache_salt="bbb")) > 0
    assert num_cached(chat(live_server, question, user="bbb", cache_salt="ccc")) == 0


def test_T1_a_turn_whose_tail_is_rendered_differently_reuses_up_to_the_divergence(live_server: LiveServer) -> None:
    """Turn 2 extends turn 1, but its last tokens differ from what the cache holds: only the tail is computed."""
    server = live_server
    first = [100 + i % 150 for i in range(300)]
    stored = server.post("/v1/completions", {"prompt": first, "max_tokens": 4, "temperature": 0}).json()
    assert num_cached(stored["usage"]) == 0
    divergence = 297
    second = first[:divergence] + [7] * 20
    usage = server.post("/v1/completions", {"prompt": second, "max_tokens": 1, "temperature": 0}).json()["usage"]
    assert usage["prompt_tokens"] == 317
    assert num_cached(usage) == divergence // BLOCK_SIZE * BLOCK_SIZE


def test_T1_every_turn_of_a_chat_reuses_the_turns_before(live_server: LiveServer) -> None:
    """Multi-turn over the chat route, where the answer is rendered again by the template."""
    client = live_server.client()
    messages: list[Any] = [{"role": "system", "content": "You are a patient teacher of geography. " * 4}]
    previous = 0
    for question in ("Where is Peru?", "And Chile?", "And which is larger?"):
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=12, temperature=0)
        messages.append(answer.choices[0].message.model_dump())
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert cached is not None and cached >= previous // BLOCK_SIZE * BLOCK_SIZE
        assert previous == 0 or cached > 0
        previous = answer.usage.prompt_tokens


def test_X1_prefix_counters_only_grow_whatever_is_mixed_in(live_server: LiveServer) -> None:
    """Cached requests, fresh ones and probes between scrapes: totals by token, and no ratio that forgets."""

    def totals() -> tuple[float, float]:
        names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
        queries, hits = (live_server.metric(name) for name in names)
        return queries, hits

    prompt = "counted " * 30
    history = [totals()]
    cached = asked = 0
    for content in (prompt, "something fresh", prompt, "another fresh one", prompt):
        usage = chat(live_server, content)
        asked, cached = asked + usage["prompt_tokens"], cached + num_cached(usage)
        assert httpx.get(live_server.url + "/health").status_code == 200
        history.append(totals())
        assert all(now >= then for now, then in zip(history[-1], history[-2], strict=True))
    assert history[-1][0] - history[0][0] == asked
    assert history[-1][1] - history[0][1] == cached > 0
    page = httpx.get(live_server.url + "/metrics").text
    assert "hit_rate" not in page and "hit_ratio" not in page
    assert "# TYPE vllm:prefix_cache_queries_total counter" in page
    assert "# TYPE vllm:prefix_cache_hits_total counter" in page
