"""Request bodies of the OpenAI routes, with vLLM's extras: what is read, in which types, and nothing else."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from kvasir.core.errors import BadRequestError
from kvasir.core.sampling import MAX_LOGPROBS, SamplingParams
from kvasir.server import unsupported

MAX_STOP_STRINGS = 64
MAX_PROMPTS = 1024
"""Of one request: each is a request to the engine, and all of them arrive between two steps."""
_INT64 = (-(1 << 63), (1 << 63) - 1)
_MODEL = ConfigDict(extra="forbid", strict=True, frozen=True)


def _stop_strings(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise ValueError("must be a string or a list of strings")
    if value is not None and len(value) > MAX_STOP_STRINGS:
        raise ValueError(f"may hold {MAX_STOP_STRINGS} strings at most, got {len(value)}")
    return value


def _bias_by_token(value: Any) -> Any:
    """{"123": -5} as JSON writes it -> {123: -5.0}."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError('must be an object that maps token ids to numbers, like {"123": -5}')
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not key.lstrip("-").isascii() or not key.lstrip("-").isdigit() or len(key) > 12:
            raise ValueError(f"names {key!r}, which is not a token id")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise ValueError(f"of token id {key} must be a number, got {bias!r}")
        biases[int(key)] = float(bias)
    return biases


TokenCount = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
"""Fits every wire; what it means is checked further in."""


class StreamOptions(BaseModel):
    model_config = _MODEL

    include_usage: bool = False


class GenerationFields(BaseModel):
    """Fields that both generating routes share.  None means "not given"; ``SamplingParams`` has the defaults."""

    model_config = _MODEL

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: TokenCount | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[int, float] | None, BeforeValidator(_bias_by_token)] = None
    seed: Annotated[int | None, Field(ge=_INT64[0], le=_INT64[1])] = None
    stop: Annotated[list[str] | None, BeforeValidator(_stop_strings)] = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: TokenCount | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), le=(1 << 31) - 1)] = 0
    cache_salt: str | None = None
    user: str | None = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def check(self) -> None:
        """Raise ``BadRequestError`` for fields that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise BadRequestError("stream_options needs stream: true.", param="stream_options")

    @property
    def token_limit(self) -> int | None:
        """The most tokens a choice may have; None leaves it to what is left of the context."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report beside each token; None reports nothing."""
        return None

    def sampling(self) -> SamplingParams:
        """The engine's view; raises ``BadRequestError`` naming the field that is out of range."""
        given = {name: getattr(self, name) for name in _SAMPLING_FIELDS if getattr(self, name) is not None}
        if given.get("top_k") == -1:  # vLLM's other way to say "no limit"
            given["top_k"] = 0
        return SamplingParams(
            **given,
            logit_bias=tuple((self.logit_bias or {}).items()),
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            max_tokens=self.token_limit,
            logprobs=self.num_logprobs,
        )


_SAMPLING_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "ignore_eos",
    "min_tokens",
)


def _text_content(value: Any) -> Any:
    """A string or a list of text parts, as it is; the text room joins parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    for number, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise ValueError(f"part {number} is of type {kind!r}; only text parts are supported")
        if not isinstance(part.get("text"), str) or len(part) != 2:
            raise ValueError(f'part {number} must look like {{"type": "text", "text": "..."}}')
    return value


_RESERVED_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})


def _template_variables(value: Any) -> Any:
    if isinstance(value, dict) and (reserved := sorted(_RESERVED_VARIABLES & value.keys())):
        raise ValueError(f"must not hold {reserved[0]}, which has a field of its own")
    return value


def _message_fields(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError('must be an object with "role" and "content"')
    if value.get("role") in ("tool", "function"):
        raise ValueError(f"has the role {value['role']!r}: tool calling is not supported yet")
    try:
        return unsupported.drop_neutral(value, unsupported.MESSAGE)
    except BadRequestError as error:
        raise ValueError(f"holds a field that cannot be served: {error}") from None


class ChatMessage(BaseModel):
    model_config = _MODEL

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str | list[dict[str, str]], BeforeValidator(_text_content)]
    name: str | None = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it: ``developer`` is OpenAI's newer word for ``system``."""
        message = {"role": "system" if self.role == "developer" else self.role, "content": self.content}
        return message if self.name is None else message | {"name": self.name}


class ChatRequest(GenerationFields):
    """Body of POST /v1/chat/completions."""

    messages: list[Annotated[ChatMessage, BeforeValidator(_message_fields)]]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    add_generation_prompt: bool = True
    chat_template_kwargs: Annotated[dict[str, Any] | None, BeforeValidator(_template_variables)] = None

    def check(self) -> None:
        super().check()
        if not self.messages:
            raise BadRequestError("messages must hold at least one message.", param="messages")
        if self.top_logprobs is not None and not self.logprobs:
            raise BadRequestError("top_logprobs needs logprobs: true.", param="top_logprobs")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) == 2:
            raise BadRequestError(
                f"max_tokens {self.max_tokens} and max_completion_tokens {self.max_completion_tokens} are two names of "
                "one limit; give one of them.",
                param="max_tokens",
            )

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def _prompts(value: Any) -> Any:
    """The four forms of ``prompt`` as one: a list whose items are texts or lists of token ids."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if len(value) > MAX_PROMPTS and not _is_token_id(value[0]):
            raise ValueError(f"may hold {MAX_PROMPTS} prompts at most, got {len(value)}")
        if all(_is_token_id(item) for item in value):
            return [value]
        if all(isinstance(item, str) for item in value):
            return value
        if all(isinstance(item, list) and item and all(_is_token_id(part) for part in item) for item in value):
            return value
    raise ValueError("must be a string, a list of strings, a list of token ids, or a list of lists of token ids")


def _is_token_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class CompletionRequest(GenerationFields):
    """Body of POST /v1/completions."""

    prompt: Annotated[list[str] | list[list[int]], BeforeValidator(_prompts)]
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    echo: bool | None = None
    return_token_ids: bool | None = None

    def check(self) -> None:
        super().check()
        if self.echo and self.logprobs is not None:
            raise BadRequestError(
                "echo with logprobs is not supported: log-probabilities are given for generated tokens only.",
                param="echo",
            )

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs
