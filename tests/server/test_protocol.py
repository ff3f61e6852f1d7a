"""Bodies: what passes, what is refused, and that every refusal names its field."""

import json
from typing import Any

import pytest

from kvasir.core.errors import BadRequestError
from kvasir.server.parsing import parse_body
from kvasir.server.protocol import ChatRequest, CompletionRequest

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatRequest:
    return parse_body(json.dumps({"messages": MESSAGES} | fields).encode(), ChatRequest)


def completion(**fields: Any) -> CompletionRequest:
    return parse_body(json.dumps({"prompt": "hi"} | fields).encode(), CompletionRequest)


def refusal(kind: Any, **fields: Any) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        kind(**fields)
    return caught.value


def test_every_setting_reaches_the_engine() -> None:
    sampling = chat(
        n=2,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=0.3,
        frequency_penalty=-0.3,
        repetition_penalty=1.2,
        logit_bias={"5": -100, "6": 1.5},
        seed=-3,
        stop="END",
        stop_token_ids=[9],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        ignore_eos=True,
        min_tokens=2,
        max_completion_tokens=11,
        logprobs=True,
        top_logprobs=4,
    ).sampling()
    assert (sampling.n, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (2, 0.5, 0.9, 7, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.3, -0.3, 1.2)
    assert sampling.logit_bias == ((5, -100.0), (6, 1.5))
    assert (sampling.seed, sampling.stop, sampling.stop_token_ids) == (-3, ("END",), (9,))
    assert sampling.include_stop_str_in_output and sampling.ignore_eos and not sampling.skip_special_tokens
    assert (sampling.min_tokens, sampling.max_tokens, sampling.logprobs) == (2, 11, 4)


def test_null_means_not_given() -> None:
    names = set(ChatRequest.model_fields) - {"messages", "priority", "add_generation_prompt"}
    nothing = chat(**dict.fromkeys(names))
    assert nothing.sampling() == chat().sampling()
    assert not nothing.stream and nothing.model is None


def test_logprobs_without_alternatives() -> None:
    assert chat(logprobs=True).sampling().logprobs == 0
    assert chat(logprobs=False).sampling().logprobs is None
    assert completion(logprobs=0).sampling().logprobs == 0


def test_top_k_of_minus_one_is_no_limit() -> None:
    assert chat(top_k=-1).sampling().top_k == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": ""}, "stop"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"surprise": True}}, "stream_options.surprise"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": "hi", "mood": "good"}]}, "messages.0.mood"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages.0"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"priority": "high"}, "priority"),
    ],
)
def test_bad_values_are_named(fields: dict[str, Any], param: str) -> None:
    error = refusal(lambda **f: chat(**f).sampling(), **fields)
    assert error.param == param
    assert param.split(".")[-1] in str(error) or param in str(error)


def test_unknown_fields_are_named_with_a_guess() -> None:
    error = refusal(chat, max_token=5)
    assert error.param == "max_token" and "did you mean max_tokens?" in str(error)
    assert "frobnicate is not a known field" in str(refusal(completion, frobnicate=1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_object"}),
        ("parallel_tool_calls", False),
        ("parallel_tool_calls", 1),
        ("best_of", 2),
        ("metadata", {"a": "b"}),
        ("guided_regex", "a*"),
        ("reasoning_effort", "high"),
        ("audio", {"voice": "x"}),
    ],
)
def test_unsupported_fields_are_refused_by_name(field: str, value: Any) -> None:
    error = refusal(chat, **{field: value})
    assert error.param == field and str(error).startswith(f"{field} is not supported: ")


def test_unsupported_fields_that_ask_for_nothing_pass() -> None:
    asked = chat(
        tools=[],
        tool_choice="none",
        functions=None,
        response_format={"type": "text"},
        parallel_tool_calls=True,
        best_of=1,
        store=False,
        metadata={},
        modalities=["text"],
        service_tier="auto",
        user="someone",
    )
    assert asked.sampling() == chat().sampling()


def test_an_assistant_message_may_come_back_as_the_client_library_dumps_it() -> None:
    dumped = {
        "role": "assistant",
        "content": "hello",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert chat(messages=[*MESSAGES, dumped, *MESSAGES]).messages[1].content == "hello"
    error = refusal(chat, messages=[dumped | {"tool_calls": [{"id": "x"}]}])
    assert error.param == "messages.0" and "tool_calls" in str(error)


def test_roles_and_parts_for_the_template() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = chat(messages=[{"role": "developer", "content": parts}, {"role": "user", "content": "x", "name": "Ann"}])
    assert [message.for_template() for message in asked.messages] == [
        {"role": "system", "content": parts},
        {"role": "user", "content": "x", "name": "Ann"},
    ]


@pytest.mark.parametrize(
    ("prompt", "normal"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ("", [""])],
)
def test_the_four_forms_of_a_prompt(prompt: Any, normal: Any) -> None:
    assert completion(prompt=prompt).prompt == normal


@pytest.mark.parametrize("prompt", [None, 5, [], [[]], ["a", 1], [1, "a"], [[1], "a"], [True], [1.5], {"a": 1}])
def test_other_prompts_are_refused(prompt: Any) -> None:
    assert refusal(completion, prompt=prompt).param == "prompt"


def test_many_tokens_are_one_prompt_and_many_prompts_are_too_many() -> None:
    assert len(completion(prompt=[1] * 5000).prompt) == 1
    assert len(completion(prompt=["a"] * 1024).prompt) == 1024
    assert "1024 prompts at most" in str(refusal(completion, prompt=["a"] * 1025))
    assert refusal(completion, prompt=[[1]] * 1025).param == "prompt"


def test_echo_with_logprobs_is_refused() -> None:
    assert refusal(completion, echo=True, logprobs=1).param == "echo"
    assert completion(echo=True).echo


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b'{"messages": ' + b"[" * 5000, b'{"a": "\\ud800"}', b"NaN"],
)
def test_bodies_that_are_no_json_object(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_body(body, ChatRequest)


def test_a_missing_field_is_named() -> None:
    error = refusal(lambda: parse_body(b"{}", CompletionRequest))
    assert error.param == "prompt" and "prompt is required" in str(error)
