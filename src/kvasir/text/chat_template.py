"""Chat messages to prompt text through the model's own Jinja template, in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvasir.core.errors import BadRequestError, ModelError

Message = Mapping[str, Any]

_DEFAULT = "default"
_TOOL_USE = "tool_use"


class ChatTemplate:
    """The template (or named templates) of one model.  ``special_tokens`` such as bos_token are template variables.

    Semantics are those of Hugging Face chat templates: blocks are trimmed, ``raise_exception``, ``strftime_now``,
    ``tojson`` without HTML escapes, loop controls and the ``generation`` tag exist.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._special_tokens = dict(special_tokens)
        self._compiled: dict[str, jinja2.Template] = {}

    @property
    def is_present(self) -> bool:
        return bool(self._sources)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text.  Raises ``BadRequestError`` when there is no template, when a message is malformed or has
        other than text parts, and when the template itself refuses (roles must alternate, ...)."""
        template = self._template(_TOOL_USE if tools and _TOOL_USE in self._sources else _DEFAULT)
        plain = [_plain_message(i, message) for i, message in enumerate(messages)]
        if not plain:
            raise BadRequestError("messages must hold at least one message.", param="messages")
        try:
            return template.render(
                **self._special_tokens,
                **variables,
                messages=plain,
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise BadRequestError(
                f"The model's chat template cannot render these messages: {error}", param="messages"
            ) from error

    def _template(self, name: str) -> jinja2.Template:
        if name not in self._sources:
            raise BadRequestError(
                "This model has no chat template, so it cannot chat; use completions with a prompt instead.",
                param="messages",
            )
        if name not in self._compiled:
            try:
                self._compiled[name] = _ENVIRONMENT.from_string(self._sources[name])
            except jinja2.TemplateError as error:
                raise ModelError(f"The model's chat template is not valid Jinja ({error}).") from error
        return self._compiled[name]


def read_template_sources(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name from chat_template.jinja, additional_chat_templates/*.jinja, chat_template.json or
    tokenizer_config.json; the first that is there wins.  Empty when the model has none."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        extra = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        named = {path.stem: path.read_text(encoding="utf-8") for path in extra}
        return named | {_DEFAULT: file.read_text(encoding="utf-8")}
    file = folder / "chat_template.json"
    template = json.loads(file.read_text(encoding="utf-8")).get("chat_template") if file.is_file() else None
    template = template or tokenizer_config.get("chat_template")
    if isinstance(template, str):
        return {_DEFAULT: template}
    if isinstance(template, list):
        return {str(entry["name"]): str(entry["template"]) for entry in template}
    return {}


def _plain_message(index: int, message: Message) -> dict[str, Any]:
    """The message as templates expect it: content as one string (or None), tool arguments as objects."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise BadRequestError(f"messages[{index}] must be an object with a role.", param=f"messages[{index}]")
    plain = dict(message)
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        plain["content"] = _joined_text(index, content)
    if message.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(index, call) for call in message["tool_calls"]]
    return plain


def _joined_text(index: int, parts: Any) -> str:
    where = f"messages[{index}].content"
    if not isinstance(parts, Sequence):
        raise BadRequestError(f"{where} must be a string or a list of parts.", param=where)
    texts: list[str] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text":
            raise BadRequestError(
                f"{where} has a part of type {kind!r}; this model takes text parts only.", param=where
            )
        if not isinstance(part.get("text"), str):
            raise BadRequestError(f"{where} has a text part without text.", param=where)
        texts.append(part["text"])
    return "\n".join(texts)


def _plain_call(index: int, call: Any) -> dict[str, Any]:
    """OpenAI clients send arguments as a JSON string; templates print the object."""
    where = f"messages[{index}].tool_calls"
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise BadRequestError(f"{where} must be objects with a function.", param=where)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise BadRequestError(f"{where} has arguments that are not JSON ({error}).", param=where) from error
    return {**call, "function": {**function, "arguments": arguments}}


class _GenerationTag(Extension):
    """``{% generation %}`` marks assistant text for training; for a prompt its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


_ENVIRONMENT = _make_environment()
