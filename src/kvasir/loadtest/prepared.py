"""Request bodies written before the load starts, so that making prompts is no part of what is measured."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kvasir.core.errors import ConfigError
from kvasir.core.progress import Progress
from kvasir.loadtest.plan import Session, Transcript, Turn, Workload
from kvasir.loadtest.target import Api, BodyMaker, Message

_YIELD_EVERY = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTurn:
    """``body`` None: it depends on the reply before, and is made from ``text`` then."""

    body: bytes | None
    text: str
    num_prompt_tokens: int
    num_output_tokens: int | None
    think_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSession:
    turns: tuple[PreparedTurn, ...]
    opening: tuple[Message, ...]
    grows: bool
    arrival_s: float | None

    def transcript(self) -> Transcript:
        return Transcript(messages=list(self.opening))


async def prepare(
    workload: Workload, bodies: BodyMaker, progress: Progress, is_stopped: Callable[[], bool] = lambda: False
) -> list[PreparedSession]:
    """All sessions of ``workload`` with their bodies, or those made until ``is_stopped``: long traces take a while.
    Raises ``ConfigError`` for what the route cannot carry."""
    prepared = []
    for session in workload.sessions:
        prepared.append(_prepared(session, bodies))
        progress("make prompts", len(prepared) / max(workload.num_sessions, len(prepared)))
        if len(prepared) % _YIELD_EVERY == 0:
            await asyncio.sleep(0)  # a signal is heard here
        if is_stopped():
            break
    progress("make prompts", 1.0)
    return prepared


def reply_body(turn: PreparedTurn, transcript: Transcript, bodies: BodyMaker) -> bytes:
    """The body of a later turn of a conversation that grows; ``transcript`` gets the user's words."""
    return bodies.body(transcript.ask(turn.text), turn.num_output_tokens)


def _prepared(session: Session, bodies: BodyMaker) -> PreparedSession:
    if (session.grows or session.opening) and bodies.api is not Api.CHAT:
        raise ConfigError("Conversations need the chat route; use --endpoint chat.")
    return PreparedSession(
        turns=tuple(_turns(session, bodies)),
        opening=session.opening,
        grows=session.grows,
        arrival_s=session.arrival_s,
    )


def _turns(session: Session, bodies: BodyMaker) -> Iterator[PreparedTurn]:
    for index, turn in enumerate(session.turns):
        is_known = index == 0 or not session.grows
        yield PreparedTurn(
            body=_body(turn, session.opening, bodies) if is_known else None,
            text=turn.prompt if isinstance(turn.prompt, str) and session.grows else "",
            num_prompt_tokens=turn.num_prompt_tokens,
            num_output_tokens=turn.num_output_tokens,
            think_s=turn.think_s,
        )


def _body(turn: Turn, opening: Iterable[Message], bodies: BodyMaker) -> bytes:
    if bodies.api is not Api.CHAT:
        return bodies.body(turn.prompt, turn.num_output_tokens)
    if not isinstance(turn.prompt, str):
        raise ConfigError("The chat route takes text, not token ids; use --prompts words.")
    messages = [*opening, {"role": "user", "content": turn.prompt}]
    return bodies.body(messages, turn.num_output_tokens)
