"""What the engine tells its clients: tokens as they come, then exactly one terminal event per request."""

from dataclasses import dataclass
from typing import NamedTuple

from kvasir.core.sequence import FinishReason
from kvasir.core.step import TokenLogprobs


class TokensEvent(NamedTuple):
    """New tokens of one sequence (``index`` within its request).  ``finish_reason`` is set on its last event.
    A NamedTuple, because one is made per token.

    ``logprobs`` has one entry per token when the request asked for them, else it is empty.
    ``stop_token_id`` is the token that ended the sequence (also the last of ``token_ids``) when the reason is STOP.
    """

    request_id: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFinishedEvent:
    """Terminal: every admitted request gets exactly one, also when aborted or failed (``error`` says why).

    Times are seconds on the engine's clock: ``queue_s`` waited before first scheduled, ``ttft_s`` arrival to first
    token, ``e2e_s`` arrival to end; ``ttft_s`` is None when no token came.
    """

    request_id: str
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_preemptions: int = 0
    queue_s: float = 0.0
    ttft_s: float | None = None
    e2e_s: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefusedEvent:
    """Terminal: the request was never admitted; nothing changed."""

    request_id: str
    code: str
    message: str
    http_status: int
    param: str | None = None


Event = TokensEvent | RequestFinishedEvent | RequestRefusedEvent
