"""Chat templates render as Hugging Face renders them; what they cannot take is a bad request that says why."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from kvasir.core.errors import BadRequestError, ModelError
from kvasir.text.chat_template import ChatTemplate, read_template_sources
from tiny_tokenizers import BOS, EOS, byte_level

SPECIAL = {"bos_token": BOS, "eos_token": EOS}
CHAT = [
    {"role": "system", "content": "Be brief <&> 'now'."},
    {"role": "user", "content": "Größe?\n"},
    {"role": "assistant", "content": "One."},
    {"role": "user", "content": "And two?"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "é <x>", "parameters": {"b": 1, "a": [2]}}}]

TEMPLATES = {
    "blocks are trimmed": "{{ bos_token }}\n{% for m in messages %}\n  {% if m.role == 'user' %}\nU:{{ m.content }}\n"
    "  {% else %}\nO:{{ m['content'] }}{{ eos_token }}\n  {% endif %}\n{% endfor %}\n"
    "{% if add_generation_prompt %}A:{% endif %}",
    "tojson": "{{ tools | tojson }}\n{{ messages | tojson(indent=2) }}",
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.role }};{% endfor %}",
    "generation tag": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}\n{{ m.content }}"
    "{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "tools or not": "{% if tools %}T{{ tools|length }}{% elif tools is none %}none{% endif %}",
    "variables": "{% if enable_thinking is defined and enable_thinking is false %}quiet{% else %}loud{% endif %}",
    "the date": "{{ strftime_now('%Y') }}{{ unknown_name }}",
    "namespaces and methods": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{{ m.content.strip().split(' ')[-1] }}{% endfor %}{{ ns.n }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("prompt", [True, False], ids=["prompt", "history"])
def test_the_text_is_what_transformers_renders(name: str, tools: list[Any] | None, prompt: bool) -> None:
    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_level(), **SPECIAL)
    theirs.chat_template = TEMPLATES[name]
    ours = ChatTemplate({"default": TEMPLATES[name]}, SPECIAL)
    choices: list[dict[str, Any]] = [{}, {"enable_thinking": False}]
    for variables in choices:
        expected = theirs.apply_chat_template(
            CHAT, tools=tools, tokenize=False, add_generation_prompt=prompt, **variables
        )
        assert ours.render(CHAT, tools=tools, add_generation_prompt=prompt, **variables) == expected


def test_a_model_without_template_says_so() -> None:
    template = ChatTemplate({}, SPECIAL)
    assert not template.is_present
    with pytest.raises(BadRequestError, match=r"has no chat template.*completions"):
        template.render(CHAT)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{{ raise_exception('Roles must alternate user/assistant.') }}", "Roles must alternate user/assistant"),
        ("{{ messages[9].content }}", "has no element 9"),
        ("{{ 'a' + none }}", "cannot render these messages"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.append(1) }}", "cannot render these messages"),
        ("{{ ''.__class__.__mro__ }}", "cannot render these messages"),
    ],
)
def test_what_a_template_refuses_is_a_bad_request(source: str, sentence: str) -> None:
    with pytest.raises(BadRequestError, match=sentence) as caught:
        ChatTemplate({"default": source}, SPECIAL).render(CHAT)
    assert caught.value.param == "messages"
    assert caught.value.http_status == 400


def test_a_broken_template_is_the_models_fault() -> None:
    with pytest.raises(ModelError, match="not valid Jinja"):
        ChatTemplate({"default": "{% for %}"}, SPECIAL).render(CHAT)


def test_text_parts_are_joined_and_other_parts_named() -> None:
    template = ChatTemplate({"default": "{% for m in messages %}[{{ m.content }}]{% endfor %}"}, {})
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert template.render([{"role": "user", "content": parts}]) == "[one\ntwo]"
    assert template.render([{"role": "user", "content": []}]) == "[]"
    for part in ({"type": "image_url", "image_url": {"url": "x"}}, {"type": "input_audio"}):
        with pytest.raises(BadRequestError, match=rf"messages\[1\]\.content has a part of type '{part['type']}'"):
            template.render([CHAT[0], {"role": "user", "content": [part]}])


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"content": "no role"}], "messages[0]"),
        (["text"], "messages[0]"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
        ([{"role": "user", "content": ["text"]}], "messages[0].content"),
        ([{"role": "assistant", "tool_calls": ["f"]}], "messages[0].tool_calls"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "messages[0].tool_calls",
        ),
    ],
)
def test_malformed_messages_are_named(messages: list[Any], param: str) -> None:
    template = ChatTemplate({"default": "{{ messages[0].content }}"}, {})
    with pytest.raises(BadRequestError) as caught:
        template.render(messages)
    assert caught.value.param == param


def test_tool_arguments_arrive_as_objects() -> None:
    template = ChatTemplate({"default": "{{ messages[0].tool_calls[0].function.arguments | tojson }}"}, {})
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Köln"}'}}
    assert template.render([{"role": "assistant", "content": None, "tool_calls": [call]}]) == '{"city": "Köln"}'


def test_the_callers_messages_are_not_changed() -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}], "tool_calls": [call]}]
    before = json.dumps(messages)
    ChatTemplate({"default": "{{ messages[0].content }}"}, {}).render(messages)
    assert json.dumps(messages) == before


def test_templates_are_found_where_folders_keep_them(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    assert read_template_sources(tmp_path, {}) == {}
    assert read_template_sources(tmp_path, {"chat_template": "S"}) == {"default": "S"}
    sources = read_template_sources(tmp_path, {"chat_template": named})
    assert ChatTemplate(sources, {}).render(CHAT) == "D"
    assert ChatTemplate(sources, {}).render(CHAT, tools=TOOLS) == "T"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert read_template_sources(tmp_path, {"chat_template": "S"}) == {"default": "J"}
    (tmp_path / "chat_template.jinja").write_text("F")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("X")
    assert read_template_sources(tmp_path, {"chat_template": "S"}) == {"default": "F", "tool_use": "X"}
