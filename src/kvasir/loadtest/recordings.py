"""Recorded conversations with text: ShareGPT files, and JSON lines of OpenAI request bodies or plain prompts."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvasir.core.errors import KvasirError
from kvasir.loadtest.plan import Session, Turn, Workload
from kvasir.loadtest.target import Message

_SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant"}
_FEWEST_TOKENS = 4
"""Exchanges shorter than this on either side are left out, as ``vllm bench serve`` does with ShareGPT."""


class RecordingError(KvasirError):
    """A file of conversations that cannot be read as one."""

    code = "invalid_recording"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What a user said and, where the file has it, what was answered; ``num_output_tokens``: where the file says it."""

    prompt: str
    answer: str | None = None
    num_output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    exchanges: tuple[Exchange, ...]
    opening: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Playback:
    """How recordings become requests.

    ``count_tokens`` estimates; ``num_turns``: exchanges of a conversation that are played; ``num_output_tokens``:
    instead of the recorded answers' lengths; ``max_tokens``: longer requests are left out; ``is_chat``: the route
    takes messages.
    """

    count_tokens: Callable[[str], int]
    num_turns: int
    num_output_tokens: int | None
    max_tokens: int | None
    is_chat: bool


def read_recordings(path: Path) -> list[Recording]:
    """A JSON list of ShareGPT conversations, or one JSON object a line.  Raises ``RecordingError``."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordingError(f"The conversations in {path} cannot be read: {error}.") from error
    found = [recording for where, entry in _entries(path, text) if (recording := _recording(where, entry)) is not None]
    if not found:
        raise RecordingError(f"{path} has no conversation that begins with a user's words.")
    return found


def recorded(path: Path, playback: Playback, num_sessions: int, seed: int) -> Workload:
    """``num_sessions`` conversations drawn without repetition, in an order that ``seed`` decides.  Fewer when the file
    has fewer that fit."""
    recordings = read_recordings(path)
    random.Random(seed).shuffle(recordings)
    sessions: list[Session] = []
    num_left_out = 0
    for recording in recordings:
        if len(sessions) == num_sessions:
            break
        session = _session(recording, playback)
        if session is None:
            num_left_out += 1
        else:
            sessions.append(session)
    if not sessions:
        raise RecordingError(f"None of the {len(recordings)} conversations in {path.name} fits the server's context.")
    return Workload(
        name="file",
        description={"file": path.name, "turns": playback.num_turns, "output_tokens": playback.num_output_tokens},
        sessions=sessions,
        num_sessions=len(sessions),
        num_left_out=num_left_out,
    )


def _session(recording: Recording, playback: Playback) -> Session | None:
    if recording.opening and not playback.is_chat:
        raise RecordingError(
            "The file holds chats with earlier messages, which /v1/completions cannot take; use --endpoint chat."
        )
    num_before = sum(playback.count_tokens(message["content"]) for message in recording.opening)
    turns: list[Turn] = []
    for exchange in recording.exchanges[: playback.num_turns]:
        num_prompt = playback.count_tokens(exchange.prompt)
        num_output = _output_tokens(exchange, playback)
        total = num_before + num_prompt + (num_output or 1)
        is_short = min(num_prompt, num_output or _FEWEST_TOKENS) < _FEWEST_TOKENS
        if is_short or (playback.max_tokens is not None and total > playback.max_tokens):
            break
        turns.append(
            Turn(prompt=exchange.prompt, num_prompt_tokens=num_before + num_prompt, num_output_tokens=num_output)
        )
        num_before = total
    if not turns:
        return None
    return Session(turns=tuple(turns), opening=recording.opening, grows=len(turns) > 1)


def _output_tokens(exchange: Exchange, playback: Playback) -> int | None:
    if playback.num_output_tokens is not None:
        return playback.num_output_tokens
    if exchange.num_output_tokens is not None:
        return exchange.num_output_tokens
    return None if exchange.answer is None else playback.count_tokens(exchange.answer)


def _entries(path: Path, text: str) -> list[tuple[str, Any]]:
    """(where it stands, value); the form is seen from the first character."""
    if text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except ValueError as error:
            raise RecordingError(f"{path.name} is not JSON ({error}).") from error
        return [(f"{path.name} entry {number}", value) for number, value in enumerate(values, 1)]
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entries.append((f"{path.name} line {number}", json.loads(line)))
        except ValueError as error:
            raise RecordingError(f"{path.name} line {number} is not JSON ({error}).") from error
    return entries


def _recording(where: str, entry: Any) -> Recording | None:
    if not isinstance(entry, dict):
        raise RecordingError(f"{where} is {type(entry).__name__}, not an object.")
    body = entry["body"] if isinstance(entry.get("body"), dict) else entry
    for names, read in _FORMS:
        value = next((body[name] for name in names if name in body), None)
        if value is not None:
            return read(where, value, body)
    raise RecordingError(f"{where} has none of conversations, messages and prompt.")


def _from_conversations(where: str, value: Any, _: dict[str, Any]) -> Recording | None:
    said: list[tuple[str, str]] = []
    for part in _list(where, value):
        role = _SPEAKERS.get(str(part.get("from", part.get("role", ""))))
        text = part.get("value", part.get("content"))
        if role is not None and isinstance(text, str):
            said.append((role, text))
    return _pairs(said)


def _from_messages(where: str, value: Any, body: dict[str, Any]) -> Recording | None:
    """All but the last user message is the opening, as the body was sent; recorded bodies end with it."""
    messages = _list(where, value)
    if not messages or messages[-1].get("role") != "user":
        raise RecordingError(f"{where} has messages that do not end with the user's.")
    texts = [_text(where, message) for message in messages]
    opening = tuple(
        {"role": str(message.get("role")), "content": text}
        for message, text in zip(messages[:-1], texts[:-1], strict=True)
    )
    return Recording(exchanges=(Exchange(prompt=texts[-1], num_output_tokens=_limit(body)),), opening=opening)


def _from_prompt(where: str, value: Any, body: dict[str, Any]) -> Recording | None:
    if not isinstance(value, str):
        raise RecordingError(f"{where} has a prompt that is not text.")
    answer = next((body[name] for name in ("completion", "response") if isinstance(body.get(name), str)), None)
    return Recording(exchanges=(Exchange(prompt=value, answer=answer, num_output_tokens=_limit(body)),))


_FORMS: tuple[tuple[tuple[str, ...], Callable[[str, Any, dict[str, Any]], Recording | None]], ...] = (
    (("conversations", "conversation"), _from_conversations),
    (("messages",), _from_messages),
    (("prompt",), _from_prompt),
)


def _pairs(said: Sequence[tuple[str, str]]) -> Recording | None:
    """User and assistant in turn; what is out of turn ends the conversation."""
    exchanges = []
    for index in range(0, len(said), 2):
        if said[index][0] != "user":
            break
        answer = said[index + 1] if index + 1 < len(said) else None
        if answer is None or answer[0] != "assistant":
            break
        exchanges.append(Exchange(prompt=said[index][1], answer=answer[1]))
    return Recording(exchanges=tuple(exchanges)) if exchanges else None


def _list(where: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise RecordingError(f"{where} has messages that are not a list of objects.")
    return value


def _text(where: str, message: dict[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, str):
        raise RecordingError(f"{where} has a message whose content is not text.")
    return content


def _limit(body: dict[str, Any]) -> int | None:
    names = ("output_tokens", "max_completion_tokens", "max_tokens")
    return next((body[name] for name in names if type(body.get(name)) is int and body[name] > 0), None)
