"""What a load sends: conversations of one or more turns, written down before the first request goes out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kvasir.loadtest.target import Message

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a conversation.

    ``prompt``: what the user says now (text), or the whole prompt as token ids.  ``num_prompt_tokens``: how many tokens
    that is meant to be.  ``num_output_tokens`` None: as long as the server likes.  ``think_s``: pause before it.
    """

    prompt: Prompt
    num_prompt_tokens: int
    num_output_tokens: int | None
    think_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation: turn after turn, each sent with all before it (``opening`` and the model's own replies).

    ``grows`` false: the turns only follow each other, every prompt is complete in itself.  ``arrival_s``: when a trace
    says the first turn came.
    """

    turns: tuple[Turn, ...]
    opening: tuple[Message, ...] = ()
    grows: bool = False
    arrival_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``sessions`` can be made once; ``num_sessions`` of them.  ``description`` goes into the result and the report.

    ``num_left_out`` recordings did not fit and are not part of it.
    """

    name: str
    description: dict[str, object]
    sessions: Iterable[Session]
    num_sessions: int
    num_left_out: int = 0
    has_times: bool = False


def lone(turns: Iterable[Turn], opening: Sequence[Message] = ()) -> Iterator[Session]:
    """A conversation for each turn."""
    for turn in turns:
        yield Session(turns=(turn,), opening=tuple(opening))


@dataclass(slots=True)
class Transcript:
    """A conversation so far, as messages."""

    messages: list[Message] = field(default_factory=list)

    def ask(self, text: str) -> list[Message]:
        self.messages.append({"role": "user", "content": text})
        return self.messages

    def reply(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})
