"""Response bodies of the OpenAI routes, field by field; encoded by msgspec."""

from dataclasses import dataclass

from msgspec import UNSET, Struct, UnsetType

from kvasir.core.sequence import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What all parts of one answer carry."""

    id: str
    created: int
    model: str
    system_fingerprint: str


def finish_word(reason: FinishReason | None) -> str | None:
    """OpenAI's word for a reason; None while there is none."""
    return None if reason is None else reason.value


class PromptTokensDetails(Struct, kw_only=True):
    cached_tokens: int
    """Prompt tokens whose keys and values were found in the prefix cache."""


class Usage(Struct, kw_only=True):
    """``completion_tokens`` counts every generated token of every choice, the end-of-sequence token included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct, kw_only=True):
    """``token`` may hold half a character (shown as U+FFFD); ``bytes`` is exact."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class ChatMessage(Struct, kw_only=True):
    role: str = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(Struct, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(Struct, kw_only=True):
    """``usage`` is left out unless asked for; then it is null on all chunks but the last."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class CompletionLogprobs(Struct, kw_only=True):
    """One entry per token in each list.  ``text_offset`` counts characters from the start of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CompletionChoice(Struct, kw_only=True):
    """``token_ids`` is vLLM's extra field, there when asked for: the generated ids; in a stream, those of the chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    """The whole answer, and one chunk of a stream: OpenAI uses one shape for both."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class Model(Struct, kw_only=True):
    """``max_model_len`` is vLLM's extra field: prompt and output together."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "kvasir"
    root: str
    max_model_len: int


class ModelList(Struct, kw_only=True):
    object: str = "list"
    data: list[Model]
