"""OpenAI-style JSON lines with text: batch lines or plain request bodies, tokenised with the model's own tokenizer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from kvasir.workload.traces.lines import json_lines
from kvasir.workload.traces.trace import Trace, TraceError, TraceRequest, in_order

BLOCK_SIZE = 16
"""Tokens a block id stands for: prompts that share fewer share nothing."""
DEFAULT_OUTPUT_TOKENS = 128
_TIME_FIELDS = ("arrival_s", "timestamp", "created")
_LIMIT_FIELDS = ("max_completion_tokens", "max_tokens")


class TextTokenizer(Protocol):
    """As much of a tokenizer as a trace of texts needs."""

    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]: ...

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]: ...


def read_openai_jsonl(path: Path, tokenizer: TextTokenizer) -> Trace:
    """A line is a request body (``messages`` or ``prompt``), or has one under ``body``.

    Time: ``arrival_s``, ``timestamp`` or ``created``, in seconds, on the line or in the body; if the first line has
    none, all arrive at 0.  Answer length: recorded ``usage.completion_tokens`` (also under ``response``), else
    ``max_completion_tokens`` or ``max_tokens``, else 128.  Raises ``TraceError``.
    """
    ids = _PrefixIds()
    requests: list[TraceRequest] = []
    time_field: str | None = None
    for number, line in json_lines(path):
        body = line["body"] if isinstance(line.get("body"), dict) else line
        if not requests:
            time_field = next((name for name in _TIME_FIELDS if name in line or name in body), None)
        token_ids = _tokens(path, number, body, tokenizer)
        requests.append(
            TraceRequest(
                request_id=str(line.get("custom_id") or number - 1),
                arrival_s=0.0 if time_field is None else _time(path, number, line, body, time_field),
                num_prompt_tokens=len(token_ids),
                num_output_tokens=_output_tokens(line, body),
                hash_ids=ids.of(token_ids),
            )
        )
    return Trace(
        name=path.stem, requests=in_order(requests), hash_block_size=BLOCK_SIZE, has_times=time_field is not None
    )


class _PrefixIds:
    """Numbers whole blocks in the order they are first seen after the same prefix."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, tuple[int, ...]], int] = {}

    def of(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        found: list[int] = []
        parent = -1
        for start in range(0, len(token_ids) - BLOCK_SIZE + 1, BLOCK_SIZE):
            key = (parent, tuple(token_ids[start : start + BLOCK_SIZE]))
            parent = self._ids.setdefault(key, len(self._ids))
            found.append(parent)
        return tuple(found)


def _tokens(path: Path, number: int, body: dict[str, Any], tokenizer: TextTokenizer) -> list[int]:
    messages, prompt = body.get("messages"), body.get("prompt")
    if isinstance(messages, list) and messages:
        token_ids = tokenizer.encode_chat(messages)
    elif isinstance(prompt, str) and prompt:
        token_ids = tokenizer.encode(prompt)
    elif isinstance(prompt, list) and prompt and all(type(token_id) is int for token_id in prompt):
        token_ids = list(prompt)
    else:
        raise TraceError(f"{path.name} line {number} has neither messages nor a prompt of text or token ids.")
    if not token_ids:
        raise TraceError(f"{path.name} line {number} has a prompt without tokens.")
    return token_ids


def _time(path: Path, number: int, line: dict[str, Any], body: dict[str, Any], name: str) -> float:
    value = line.get(name, body.get(name))
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise TraceError(f"{path.name} line {number} has {name} = {value!r}; seconds are expected, as on line 1.")
    return float(value)


def _output_tokens(line: dict[str, Any], body: dict[str, Any]) -> int:
    for holder in (line, body, line.get("response"), (line.get("response") or {}).get("body")):
        usage = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            return max(1, usage["completion_tokens"])
    limits = (body.get(name) for name in _LIMIT_FIELDS)
    return max(1, next((limit for limit in limits if isinstance(limit, int)), DEFAULT_OUTPUT_TOKENS))
