"""Batch lines: both forms are read as the server reads its bodies, and a bad line says what is wrong with it."""

import json

import pytest

from kvasir.cli.batch_lines import custom_id_of, parse_line
from kvasir.core.errors import BadRequestError
from kvasir.server.protocol import ChatRequest, CompletionRequest

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def test_openai_batch_form() -> None:
    text = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT})
    line = parse_line(7, text)
    assert (line.number, line.custom_id) == (7, "a")
    assert isinstance(line.body, ChatRequest)
    assert line.body.max_tokens == 3


def test_plain_bodies() -> None:
    assert isinstance(parse_line(1, json.dumps(CHAT)).body, ChatRequest)
    line = parse_line(1, '{"prompt": ["a", "b"], "custom_id": "x"}')
    assert isinstance(line.body, CompletionRequest)
    assert (line.body.prompt, line.custom_id) == (["a", "b"], "x")


@pytest.mark.parametrize(
    ("text", "sentence", "param"),
    [
        ("not json", "not valid JSON", None),
        ("[1]", "must be a JSON object, got list", None),
        ("{}", "needs messages (a chat) or prompt (a completion), and not both", None),
        ('{"prompt": "a", "messages": []}', "and not both", None),
        ('{"prompt": "a", "max_tokenz": 1}', "did you mean max_tokens", "max_tokenz"),
        ('{"prompt": "a", "stream": true}', "stream has no meaning in a file", "stream"),
        ('{"prompt": "a", "custom_id": 4}', "custom_id must be a string, got 4", "custom_id"),
        ('{"url": "/v1/embeddings", "body": {}}', "url must be one of /v1/chat/completions, /v1/completions", "url"),
        ('{"method": "GET", "url": "/v1/completions", "body": {}}', "method must be POST, got 'GET'", "method"),
        ('{"url": "/v1/completions", "body": {"prompt": "a"}, "n": 2}', "n is not a field of a batch line", "n"),
        ('{"url": "/v1/completions", "body": []}', "must be a JSON object", None),
    ],
)
def test_bad_lines_say_what_is_wrong(text: str, sentence: str, param: str | None) -> None:
    with pytest.raises(BadRequestError, match="^.*" + sentence.replace("(", r"\(").replace(")", r"\)")) as caught:
        parse_line(1, text)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("text", "name"), [('{"custom_id": "a"}', "a"), ('{"custom_id": 1}', None), ("[]", None), ("nonsense", None)]
)
def test_an_error_record_keeps_the_name_where_it_can(text: str, name: str | None) -> None:
    assert custom_id_of(text) == name
