"""What text-level measures ask and get: a conversation in, a reply out; the same for an engine here and a server."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.text.tokenizer import Tokenizer

Message = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Turns so far, the user's last.  ``turns`` alternate user, assistant, user, ..."""

    turns: tuple[str, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0

    @property
    def messages(self) -> list[Message]:
        roles = ("user", "assistant")
        return [{"role": roles[i % 2], "content": text} for i, text in enumerate(self.turns)]

    def followed_by(self, reply: str, question: str) -> "Chat":
        return Chat(
            turns=(*self.turns, reply, question),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """``token_ids`` are those that were generated, the end token too; None where a server told the text only."""

    text: str
    token_ids: tuple[int, ...] | None
    has_ended: bool
    """The model ended its answer itself; else ``max_tokens`` cut it."""


def num_instruction_tokens(tokenizer: Tokenizer, messages: Sequence[Message]) -> int:
    """How many tokens at the beginning of ``encode_chat`` are instructions: what is served would pin them."""
    return tokenizer.num_instruction_tokens(messages) if tokenizer.chat_template.is_present else 0


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """The prompt of a chat: through the model's template, or its turns as plain paragraphs for a model without one."""
    if tokenizer.chat_template.is_present:
        return tokenizer.encode_chat(messages)
    return tokenizer.encode("\n\n".join(message["content"] for message in messages))
