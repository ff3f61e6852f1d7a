"""How a chat generation is written: one object, or a stream of chunks."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import UNSET

from kvasir.server.finished import FinishedAnswer
from kvasir.server.generation import ChoiceDelta, Generation
from kvasir.server.responses import (
    AnswerHead,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    TokenLogprob,
    TopLogprob,
    Usage,
    finish_word,
)
from kvasir.server.sse import frame
from kvasir.text import output


def whole_chat(head: AnswerHead, generation: FinishedAnswer, *, with_logprobs: bool) -> ChatCompletion:
    """The answer of a finished generation."""
    return ChatCompletion(
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=[
            ChatChoice(
                index=index,
                message=ChatMessage(content=assembler.text),
                finish_reason=finish_word(assembler.finish_reason),
                logprobs=ChatLogprobs(content=_logprobs(assembler.logprobs)) if with_logprobs else None,
            )
            for index, assembler in enumerate(generation.assemblers)
        ],
        usage=generation.usage,
    )


async def chat_events(
    head: AnswerHead, generation: Generation, *, with_logprobs: bool, with_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Frames of the stream: per choice the role, then text as it comes, then the reason; then usage if asked for."""
    greeted: set[int] = set()

    def chunk(choices: list[ChatChunkChoice], usage: Usage | None = None) -> bytes:
        return frame(
            ChatChunk(
                id=head.id,
                created=head.created,
                model=head.model,
                system_fingerprint=head.system_fingerprint,
                choices=choices,
                usage=usage if with_usage else UNSET,
            )
        )

    async with aclosing(generation.deltas()) as deltas:
        async for changes in deltas:
            parts: list[ChatChunkChoice] = []
            for change in changes:
                if change.choice not in greeted:
                    greeted.add(change.choice)
                    parts.append(ChatChunkChoice(index=change.choice, delta=ChatDelta(role="assistant", content="")))
                parts += _parts(change, with_logprobs)
            yield b"".join([chunk([part]) for part in parts])
    if with_usage:
        yield chunk([], generation.usage)


def _parts(change: ChoiceDelta, with_logprobs: bool) -> list[ChatChunkChoice]:
    """The text with its tokens' log-probabilities, then the end; tokens without text go with the end."""
    delta = change.delta
    logprobs = ChatLogprobs(content=_logprobs(delta.logprobs)) if with_logprobs and delta.logprobs else None
    parts: list[ChatChunkChoice] = []
    if delta.text:
        parts.append(ChatChunkChoice(index=change.choice, delta=ChatDelta(content=delta.text), logprobs=logprobs))
        logprobs = None
    if delta.finish_reason is not None:
        reason = finish_word(delta.finish_reason)
        parts.append(ChatChunkChoice(index=change.choice, delta=ChatDelta(), finish_reason=reason, logprobs=logprobs))
    elif logprobs is not None:
        parts.append(ChatChunkChoice(index=change.choice, delta=ChatDelta(content=""), logprobs=logprobs))
    return parts


def _logprobs(entries: Sequence[output.TokenLogprob]) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            token=entry.text,
            logprob=entry.logprob,
            bytes=list(entry.data),
            top_logprobs=[TopLogprob(token=top.text, logprob=top.logprob, bytes=list(top.data)) for top in entry.top],
        )
        for entry in entries
    ]
