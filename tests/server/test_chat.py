"""Chat over HTTP with the official client, streaming and not."""

import json
from typing import Any

import httpx
import pytest

from live_server import LiveServer

QUESTION = [{"role": "user", "content": "Name three colours of the rainbow."}]


def ask(server: LiveServer, **settings: Any) -> Any:
    return server.client().chat.completions.create(
        **({"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 12} | settings)
    )


def ask_raw(server: LiveServer, **settings: Any) -> list[dict[str, Any]]:
    """The chunks of a stream, taken from the wire; checks its frame."""
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 12, "stream": True} | settings
    with httpx.stream("POST", server.url + "/v1/chat/completions", json=body, timeout=60) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_whole_answer(live_server: LiveServer) -> None:
    answer = ask(live_server)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.model == "demo" and answer.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length") and choice.logprobs is None
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 12


def test_stream_says_what_the_whole_answer_says(live_server: LiveServer) -> None:
    whole = ask(live_server)
    chunks = list(ask(live_server, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[-1] == whole.choices[0].finish_reason and set(reasons[:-1]) == {None}
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)


def test_no_empty_chunks_and_no_half_characters(live_server: LiveServer) -> None:
    chunks = ask_raw(live_server, messages=[{"role": "user", "content": "Repeat: 日本語 🙂 é"}], max_tokens=40)
    middle = [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]]
    assert middle and all(delta.keys() == {"content"} and delta["content"] for delta in middle)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["delta"] == {}


def test_max_tokens_ends_with_length(live_server: LiveServer) -> None:
    answer = ask(live_server, max_tokens=3)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 3
    newer_name = ask(live_server, max_tokens=None, max_completion_tokens=3)
    assert newer_name.choices[0].message.content == answer.choices[0].message.content


def test_without_a_limit_the_context_is_the_limit(live_server: LiveServer) -> None:
    nearly_full = [{"role": "user", "content": "one " * 460}]
    answer = ask(live_server, messages=nearly_full, max_tokens=None, extra_body={"ignore_eos": True})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == 512


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_is_cut_out_and_ends_the_answer(live_server: LiveServer, stream: bool) -> None:
    text = ask(live_server, max_tokens=12).choices[0].message.content
    stop = text[10:14]
    expected = text[: text.index(stop)]
    answer = ask(live_server, max_tokens=16, stop=[stop, "never said"], stream=stream)
    if stream:
        chunks = list(answer)
        got = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        got, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
        assert answer.usage.completion_tokens < 16
    assert (got, reason) == (expected, "stop")
    live_server.wait_idle()


def test_stop_string_can_be_kept(live_server: LiveServer) -> None:
    text = ask(live_server, max_tokens=12).choices[0].message.content
    stop = text[10:14]
    answer = ask(live_server, max_tokens=16, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert answer.choices[0].message.content == text[: text.index(stop) + len(stop)]


def test_n_choices_each_with_its_own_end(live_server: LiveServer) -> None:
    answer = ask(live_server, n=3, temperature=1.5, seed=7, max_tokens=12)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    assert answer.usage.completion_tokens <= 36
    texts = ["", "", ""]
    for chunk in ask(live_server, n=3, temperature=1.5, seed=7, max_tokens=12, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in answer.choices]


def test_one_of_several_choices_stops_alone(live_server: LiveServer) -> None:
    settings = {"n": 3, "temperature": 1.5, "seed": 7, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
    texts = [choice.message.content for choice in ask(live_server, **settings).choices]
    stop = next(
        texts[0][i : i + 5] for i in range(len(texts[0])) if all(texts[0][i : i + 5] not in t for t in texts[1:])
    )
    choices = ask(live_server, stop=stop, **settings).choices
    assert [choice.finish_reason for choice in choices] == ["stop", "length", "length"]
    assert choices[0].message.content == texts[0][: texts[0].index(stop)]
    assert [choice.message.content for choice in choices[1:]] == texts[1:]
    live_server.wait_idle()


def test_seed_repeats_and_differs(live_server: LiveServer) -> None:
    def text(seed: int) -> str:
        return ask(live_server, temperature=1.2, seed=seed).choices[0].message.content

    assert text(1) == text(1)
    assert len({text(1), text(2), text(3)}) > 1


def test_bias_and_stop_token_ids(live_server: LiveServer) -> None:
    first = ask(live_server, logprobs=True, max_tokens=1).choices[0].logprobs.content[0].token
    token_id = _token_id(live_server, first)
    without = ask(live_server, logit_bias={str(token_id): -100}, max_tokens=1)
    assert without.choices[0].message.content != first
    stopped = ask(live_server, extra_body={"stop_token_ids": [token_id]})
    assert stopped.choices[0].finish_reason == "stop" and stopped.usage.completion_tokens == 1
    assert stopped.choices[0].message.content == ""


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_have_an_entry_for_every_token_that_is_shown(live_server: LiveServer, stream: bool) -> None:
    settings: dict[str, Any] = {"logprobs": True, "extra_body": {"ignore_eos": True}}
    tokens = [entry.token for entry in ask(live_server, **settings).choices[0].logprobs.content]
    end = next(i for i in range(3, 12) if tokens[i] not in tokens[:i])
    settings["extra_body"] = {"stop_token_ids": [_token_id(live_server, tokens[end])]}
    answer = ask(live_server, **settings)
    entries = answer.choices[0].logprobs.content
    assert answer.choices[0].finish_reason == "stop" and answer.usage.completion_tokens == end + 1
    assert [entry.token for entry in entries] == tokens[:end]
    assert answer.choices[0].message.content == "".join(tokens[:end])
    assert all(entry.top_logprobs == [] for entry in entries)
    if stream:
        chunks = [chunk.choices[0] for chunk in ask(live_server, stream=True, **settings)]
        assert [entry for chunk in chunks if chunk.logprobs for entry in chunk.logprobs.content] == entries
        assert chunks[-1].finish_reason == "stop" and chunks[-1].logprobs is None


def test_ignore_eos_and_min_tokens(live_server: LiveServer) -> None:
    short = [{"role": "user", "content": "Say only: yes"}]
    on = ask(live_server, messages=short, max_tokens=20, extra_body={"ignore_eos": True})
    assert on.usage.completion_tokens == 20
    at_least = ask(live_server, messages=short, max_tokens=20, extra_body={"min_tokens": 16})
    assert at_least.usage.completion_tokens >= 16


def test_settings_that_are_vllms(live_server: LiveServer) -> None:
    greedy = ask(live_server).choices[0].message.content
    extra = {"top_k": 1, "min_p": 0.0, "repetition_penalty": 1.0, "priority": 0, "skip_special_tokens": True}
    assert ask(live_server, temperature=1, extra_body=extra).choices[0].message.content == greedy
    penalised = ask(live_server, extra_body={"repetition_penalty": 1.8}).choices[0].message.content
    assert penalised != greedy


def test_generation_prompt_can_be_left_out(live_server: LiveServer) -> None:
    with_prompt = ask(live_server, max_tokens=1).usage.prompt_tokens
    without = ask(live_server, max_tokens=1, extra_body={"add_generation_prompt": False}).usage.prompt_tokens
    assert without < with_prompt


def test_template_variables_reach_the_template(live_server: LiveServer) -> None:
    """The embedded model's template reads none, so they change nothing; a reserved one is refused."""
    plain = ask(live_server).choices[0].message.content
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    assert ask(live_server, extra_body=extra).choices[0].message.content == plain
    refused = live_server.post("/v1/chat/completions", {"messages": QUESTION, "chat_template_kwargs": {"tools": []}})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "chat_template_kwargs"


def test_many_at_once_are_all_answered_alike(live_server: LiveServer) -> None:
    """More requests than seats; greedy answers do not depend on company."""
    import concurrent.futures

    alone = ask(live_server).choices[0].message.content
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: ask(live_server).choices[0].message.content, range(10)))
    assert answers == [alone] * 10


def _token_id(server: LiveServer, text: str) -> int:
    from kvasir.models.resolve import resolve_model
    from kvasir.text.tokenizer import Tokenizer

    (token_id,) = Tokenizer.from_folder(resolve_model("demo").path).encode(text, add_special_tokens=False)
    return token_id
