"""How a request wants its tokens drawn: one frozen value, checked once at the door."""

import math
from dataclasses import dataclass, replace
from typing import Self

from kvasir.core.errors import BadRequestError

MAX_LOGPROBS = 20
MAX_N = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request, with OpenAI's and vLLM's names and meanings.

    ``temperature == 0`` means greedy.  ``top_k == 0`` means no limit.  ``logprobs`` is the number of alternatives
    reported beside the drawn token (0 reports the drawn token only, None reports nothing).  ``max_tokens`` None means
    "as many as the context allows".  ``logit_bias`` is a tuple of (token id, bias) pairs.
    Raises ``BadRequestError`` naming the field when a value is out of range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = None
    seed: int | None = None
    logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not (low <= value <= high) or math.isnan(value):
                raise BadRequestError(f"{name} must be between {low} and {high}, got {value}.", param=name)
        if self.repetition_penalty <= 0:
            raise BadRequestError(
                f"repetition_penalty must be above 0, got {self.repetition_penalty}.",
                param="repetition_penalty",
            )
        if self.top_p <= 0:
            raise BadRequestError(f"top_p must be above 0 and at most 1, got {self.top_p}.", param="top_p")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise BadRequestError(f"max_tokens must be at least 1, got {self.max_tokens}.", param="max_tokens")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise BadRequestError(
                f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}.", param="min_tokens"
            )
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise BadRequestError(
                f"logprobs must be between 0 and {MAX_LOGPROBS}, got {self.logprobs}.", param="logprobs"
            )
        if any(s == "" for s in self.stop):
            raise BadRequestError("stop must not contain an empty string.", param="stop")
        self._check_ids()

    def _check_ids(self) -> None:
        for token_id, bias in self.logit_bias:
            if token_id < 0:
                raise BadRequestError(f"logit_bias names token id {token_id}, which is negative.", param="logit_bias")
            if not -100.0 <= bias <= 100.0:
                raise BadRequestError(
                    f"logit_bias of token id {token_id} must be between -100 and 100, got {bias}.",
                    param="logit_bias",
                )
        for token_id in self.stop_token_ids:
            if token_id < 0:
                raise BadRequestError(f"stop_token_ids names {token_id}, which is negative.", param="stop_token_ids")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ``BadRequestError`` naming the first token id outside ``[0, vocab_size)``."""
        for token_id, _ in self.logit_bias:
            if token_id >= vocab_size:
                raise BadRequestError(
                    f"logit_bias names token id {token_id}, but the vocabulary ends at {vocab_size - 1}.",
                    param="logit_bias",
                )
        for token_id in self.stop_token_ids:
            if token_id >= vocab_size:
                raise BadRequestError(
                    f"stop_token_ids names {token_id}, but the vocabulary ends at {vocab_size - 1}.",
                    param="stop_token_ids",
                )

    def with_max_tokens(self, max_tokens: int) -> Self:
        return replace(self, max_tokens=max_tokens)


# (field, lowest, highest); both ends allowed.
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("n", 1, MAX_N),
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("top_k", 0, 1 << 31),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.0, 100.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("min_tokens", 0, 1 << 31),
)
