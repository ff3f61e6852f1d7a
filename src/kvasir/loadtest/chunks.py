"""What one event of an answer's stream says, on either route and with the extras of the common servers."""

from typing import Any

from msgspec import Struct
from msgspec.json import Decoder


class PromptTokensDetails(Struct):
    cached_tokens: int | None = None


class Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None


class Delta(Struct):
    """``reasoning*``: what servers call the thinking part of an answer; its tokens are generated tokens too."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class Choice(Struct):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def output(self) -> str:
        delta = self.delta
        if delta is None:
            return self.text or ""
        return delta.content or delta.reasoning_content or delta.reasoning or ""

    @property
    def has_output(self) -> bool:
        return bool(self.output) or (self.delta is not None and bool(self.delta.tool_calls))


class Chunk(Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


decode_chunk = Decoder(Chunk).decode
"""Raises ``msgspec.DecodeError``."""


def error_text(error: Any) -> str:
    """The server's own words from an ``error`` value: a sentence, or an object with a ``message``."""
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error)
