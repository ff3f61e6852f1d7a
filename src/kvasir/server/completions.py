"""How a completion generation is written: one object, or a stream of the same objects."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import UNSET, UnsetType

from kvasir.server.finished import FinishedAnswer
from kvasir.server.generation import Generation
from kvasir.server.responses import AnswerHead, Completion, CompletionChoice, CompletionLogprobs, Usage, finish_word
from kvasir.server.sse import frame
from kvasir.text import output


def whole_completion(
    head: AnswerHead,
    generation: FinishedAnswer,
    *,
    num_logprobs: int | None,
    echoes: Sequence[str],
    with_token_ids: bool = False,
) -> Completion:
    """The answer of a finished generation; ``echoes`` has the text that goes before each choice's own."""
    choices = [
        CompletionChoice(
            index=index,
            text=echoes[index] + assembler.text,
            finish_reason=finish_word(assembler.finish_reason),
            logprobs=None if num_logprobs is None else _logprobs(assembler.logprobs, num_logprobs),
            token_ids=list(assembler.token_ids) if with_token_ids else UNSET,
        )
        for index, assembler in enumerate(generation.assemblers)
    ]
    return _completion(head, choices, generation.usage)


async def completion_events(
    head: AnswerHead, generation: Generation, *, num_logprobs: int | None, echoes: Sequence[str], with_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Frames of the stream: what is echoed, the text as it comes, the reason with the last; usage if asked for."""
    usage_so_far = None if with_usage else UNSET
    prompts = [CompletionChoice(index=index, text=echo) for index, echo in enumerate(echoes) if echo]
    if prompts:
        yield b"".join([frame(_completion(head, [choice], usage_so_far)) for choice in prompts])
    async with aclosing(generation.deltas()) as deltas:
        async for changes in deltas:
            choices = [
                CompletionChoice(
                    index=change.choice,
                    text=change.delta.text,
                    finish_reason=finish_word(change.delta.finish_reason),
                    logprobs=None if num_logprobs is None else _logprobs(change.delta.logprobs, num_logprobs),
                    token_ids=list(change.delta.token_ids) if generation.shows_token_ids else UNSET,
                )
                for change in changes
            ]
            yield b"".join([frame(_completion(head, [choice], usage_so_far)) for choice in choices])
    if with_usage:
        yield frame(_completion(head, [], generation.usage))


def _completion(head: AnswerHead, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
    return Completion(
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=choices,
        usage=usage,
    )


def _logprobs(entries: Sequence[output.TokenLogprob], num_alternatives: int) -> CompletionLogprobs:
    """Each token's own alternatives, the drawn token always among them, as OpenAI's completions have it."""
    return CompletionLogprobs(
        tokens=[entry.text for entry in entries],
        token_logprobs=[entry.logprob for entry in entries],
        top_logprobs=[_alternatives(entry) for entry in entries] if num_alternatives else None,
        text_offset=[entry.offset for entry in entries],
    )


def _alternatives(entry: output.TokenLogprob) -> dict[str, float]:
    """By text, best first; of two tokens with one text (parts of characters) the better stays."""
    by_text: dict[str, float] = {}
    for top in entry.top:
        by_text.setdefault(top.text, top.logprob)
    return by_text | {entry.text: entry.logprob}
