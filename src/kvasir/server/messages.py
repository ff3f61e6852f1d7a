"""Everything the two processes say to each other: one tagged struct a message, MessagePack on the wire.

The values inside are the engine's own nouns (``Request``, the events), so there is nothing to translate.
"""

import msgspec

from kvasir.core.events import RequestFinishedEvent, RequestRefusedEvent, TokensEvent
from kvasir.core.request import Request
from kvasir.engine.config import EngineConfig
from kvasir.engine.stats import EngineStats
from kvasir.scheduling.config import QueuePolicy


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Base of all messages; the class name is the tag."""


# HTTP process -> engine process


class Start(Message, frozen=True):
    """First and once: load this model and get ready."""

    config: EngineConfig


class Submit(Message, frozen=True):
    """Answered with ``Admitted`` or, in a ``StepReport``, with a ``RequestRefusedEvent``."""

    request: Request


class Abort(Message, frozen=True):
    """Idempotent; the terminal event still comes, unless the request has ended already."""

    request_id: str


class StopSequence(Message, frozen=True):
    """One sequence's text is complete (a stop string, which the engine cannot see); its siblings go on."""

    request_id: str
    index: int


class ResetPrefixCache(Message, frozen=True):
    """Answered with ``PrefixCacheReset``."""

    call_id: int


class Shutdown(Message, frozen=True):
    """Abort everything and exit."""


ToEngine = Start | Submit | Abort | StopSequence | ResetPrefixCache | Shutdown


# engine process -> HTTP process


class LoadProgress(Message, frozen=True):
    stage: str
    fraction: float


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the KV pool holds.  ``num_tokens``: of one stream of sequences that share nothing, whole blocks.

    ``num_sequences``: how many sequences of ``max_model_len`` fit at once.
    """

    block_size: int
    num_blocks: tuple[int, ...]
    num_tokens: int
    num_sequences: float
    num_bytes: int


class Ready(Message, frozen=True):
    """The engine can serve.  ``effective_config`` is what is really in force, by flag name."""

    model_name: str
    model_path: str
    model_digest: str
    layout_digest: str
    max_model_len: int
    vocab_size: int
    policy: QueuePolicy
    effective_config: dict[str, str]
    capacity: Capacity


class StartFailed(Message, frozen=True):
    """The engine refuses to start (the process then ends): the refusal's code and sentence."""

    code: str
    message: str


class Admitted(Message, frozen=True):
    request_id: str


class StepReport(Message, frozen=True):
    """What one step brought, in order: tokens first, then the requests that ended.

    Also the heartbeat: an idle engine sends one a second with ``step_s`` None.
    """

    stats: EngineStats
    step_s: float | None = None
    tokens: tuple[TokensEvent, ...] = ()
    finished: tuple[RequestFinishedEvent, ...] = ()
    refused: tuple[RequestRefusedEvent, ...] = ()


class PrefixCacheReset(Message, frozen=True):
    call_id: int


class EngineFailed(Message, frozen=True):
    """A law was broken or the machine gave out; the process ends after this."""

    reason: str


FromEngine = LoadProgress | Ready | StartFailed | Admitted | StepReport | PrefixCacheReset | EngineFailed

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
"""bytes -> ``ToEngine``; raises ``msgspec.ValidationError`` on anything else."""
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
"""bytes -> ``FromEngine``; raises ``msgspec.ValidationError`` on anything else."""
