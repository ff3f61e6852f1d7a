"""Completions over HTTP: the forms of a prompt, echo, log-probabilities, streams."""

from typing import Any

import pytest

from kvasir.models.resolve import resolve_model
from kvasir.text.tokenizer import Tokenizer
from live_server import LiveServer

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve_model("demo").path)


def complete(server: LiveServer, **settings: Any) -> Any:
    return server.client().completions.create(
        **({"model": "demo", "prompt": PROMPT, "temperature": 0, "max_tokens": 8} | settings)
    )


def test_whole_and_streamed(live_server: LiveServer) -> None:
    whole = complete(live_server)
    assert whole.object == "text_completion" and whole.choices[0].finish_reason == "length"
    chunks = list(complete(live_server, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_tokens_as_prompt_are_the_text_as_prompt(live_server: LiveServer, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(PROMPT)
    assert complete(live_server, prompt=ids).choices[0].text == complete(live_server).choices[0].text
    assert complete(live_server, prompt=ids).usage.prompt_tokens == len(ids)


def test_token_ids_on_request(live_server: LiveServer, tokenizer: Tokenizer) -> None:
    plain = complete(live_server).choices[0]
    assert "token_ids" not in plain.model_dump()
    whole = complete(live_server, extra_body={"return_token_ids": True}).choices[0]
    assert len(whole.token_ids) == 8 and tokenizer.decode(whole.token_ids) == whole.text == plain.text
    chunks = list(complete(live_server, stream=True, extra_body={"return_token_ids": True}))
    assert [token for chunk in chunks for token in chunk.choices[0].token_ids] == whole.token_ids


def test_token_ids_come_before_their_text(live_server: LiveServer, tokenizer: Tokenizer) -> None:
    """A part of a character has an id but no text yet."""
    part = tokenizer.encode("\U0001f600")[0]
    settings = {"max_tokens": 4, "logit_bias": {str(part): 100}, "stream": True}
    without = list(complete(live_server, **settings))
    chunks = list(complete(live_server, **settings, extra_body={"return_token_ids": True}))
    assert [token for chunk in chunks for token in chunk.choices[0].token_ids] == [part] * 4
    assert len(chunks) >= len(without)
    assert "".join(c.choices[0].text for c in chunks) == "".join(c.choices[0].text for c in without)


def test_several_prompts_keep_their_order(live_server: LiveServer, tokenizer: Tokenizer) -> None:
    prompts = [PROMPT, "One, two, three,", "Roses are red, violets are"]
    alone = [complete(live_server, prompt=prompt).choices[0].text for prompt in prompts]
    together = complete(live_server, prompt=prompts)
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert [choice.text for choice in together.choices] == alone
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    assert [choice.text for choice in complete(live_server, prompt=ids).choices] == alone
    assert together.usage.prompt_tokens == sum(map(len, ids)) and together.usage.completion_tokens == 24


def test_prompts_times_n(live_server: LiveServer) -> None:
    answer = complete(live_server, prompt=[PROMPT, "One, two,"], n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in answer.choices]
    assert texts[0] == texts[1] and texts[2] == texts[3] and texts[0] != texts[2]


@pytest.mark.parametrize("as_ids", [False, True])
def test_echo(live_server: LiveServer, tokenizer: Tokenizer, as_ids: bool) -> None:
    prompt = tokenizer.encode(PROMPT) if as_ids else PROMPT
    plain = complete(live_server).choices[0].text
    assert complete(live_server, prompt=prompt, echo=True).choices[0].text == PROMPT + plain
    chunks = list(complete(live_server, prompt=prompt, echo=True, stream=True))
    assert chunks[0].choices[0].text == PROMPT
    assert "".join(chunk.choices[0].text for chunk in chunks) == PROMPT + plain


def test_logprobs(live_server: LiveServer) -> None:
    choice = complete(live_server, logprobs=3).choices[0]
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:i])) for i in range(len(logprobs.tokens))]
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert len(top) == 3 and top[token] == logprob == max(top.values()) <= 0
    assert complete(live_server, logprobs=0).choices[0].logprobs.top_logprobs is None
    streamed = [chunk.choices[0].logprobs for chunk in complete(live_server, logprobs=3, stream=True)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [item for part in streamed for item in getattr(part, name)] == getattr(logprobs, name)


def test_drawn_token_outside_the_best_is_listed_too(live_server: LiveServer) -> None:
    choice = complete(live_server, logprobs=1, temperature=2, seed=5, max_tokens=20).choices[0]
    assert any(len(top) == 2 for top in choice.logprobs.top_logprobs)
    pairs = zip(choice.logprobs.tokens, choice.logprobs.top_logprobs, strict=True)
    assert all(token in top for token, top in pairs)


def test_one_bad_prompt_refuses_all(live_server: LiveServer) -> None:
    response = live_server.post("/v1/completions", {"prompt": [[5, 6], [7, 10**6]]})
    assert response.status_code == 400 and "1000000" in response.json()["error"]["message"]
    too_long = live_server.post("/v1/completions", {"prompt": [[5, 6], [7] * 600]})
    assert too_long.status_code == 400 and too_long.json()["error"]["code"] == "context_length_exceeded"
    live_server.wait_idle()
