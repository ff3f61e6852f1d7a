"""The lines of a batch file: JSON to a checked request with a name, or to one sentence about what is wrong."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvasir.core.errors import BadRequestError
from kvasir.server.parsing import parse_body
from kvasir.server.protocol import ChatRequest, CompletionRequest

_KINDS: dict[str, type[ChatRequest] | type[CompletionRequest]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
}
_ENVELOPE = {"custom_id", "method", "url", "body"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """``number`` counts from 1.  ``custom_id`` is the caller's own name for the line, handed back with the answer."""

    number: int
    custom_id: str | None
    body: ChatRequest | CompletionRequest


def custom_id_of(text: str) -> str | None:
    """The line's own name if it can be read at all: an error record should carry it."""
    try:
        name = json.loads(text).get("custom_id")
    except (ValueError, AttributeError):
        return None
    return name if isinstance(name, str) else None


def parse_line(number: int, text: str) -> BatchLine:
    """A line is OpenAI's batch form, ``{"custom_id", "method", "url", "body"}``, or a request body by itself: with
    ``messages`` for a chat, with ``prompt`` for a completion, and a ``custom_id`` beside them if wanted.

    Raises ``BadRequestError`` naming the field, as the server does.
    """
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise BadRequestError(f"The line is not valid JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise BadRequestError(f"The line must be a JSON object, got {type(fields).__name__}.")
    custom_id = fields.pop("custom_id", None)
    if custom_id is not None and not isinstance(custom_id, str):
        raise BadRequestError(f"custom_id must be a string, got {custom_id!r}.", param="custom_id")
    kind, body_fields = _unwrapped(fields) if "body" in fields else (_kind_of(fields), fields)
    body = parse_body(json.dumps(body_fields).encode(), kind)
    if body.stream:
        raise BadRequestError("stream has no meaning in a file: answers are written whole.", param="stream")
    return BatchLine(number=number, custom_id=custom_id, body=body)


def _unwrapped(fields: Mapping[str, Any]) -> tuple[type[ChatRequest] | type[CompletionRequest], Any]:
    if unknown := fields.keys() - _ENVELOPE:
        raise BadRequestError(f"{min(unknown)} is not a field of a batch line; put it into body.", param=min(unknown))
    if fields.get("method", "POST") != "POST":
        raise BadRequestError(f"method must be POST, got {fields['method']!r}.", param="method")
    kind = _KINDS.get(str(fields.get("url")))
    if kind is None:
        raise BadRequestError(f"url must be one of {', '.join(_KINDS)}, got {fields.get('url')!r}.", param="url")
    return kind, fields["body"]


def _kind_of(fields: Mapping[str, Any]) -> type[ChatRequest] | type[CompletionRequest]:
    if ("messages" in fields) == ("prompt" in fields):
        raise BadRequestError("A line needs messages (a chat) or prompt (a completion), and not both.")
    return ChatRequest if "messages" in fields else CompletionRequest
