"""What a worker and the bench say to each other: one JSON object a line; standard library only."""

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a worker starts its program.  ``options`` belong to the adapter; ``kv`` is the program's own word, "" for
    its default; ``context_tokens`` is the longest prompt and output together, ``num_parallel`` the most at once."""

    model: str
    program: str
    kv: str
    num_threads: int
    context_tokens: int
    num_parallel: int
    has_prefix_cache: bool
    options: dict[str, Any]

    def to_argument(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, text: str) -> "Settings":
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Generate exactly ``num_output`` tokens after ``prompt``, greedily, whatever they are."""

    number: int
    prompt: list[int]
    num_output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Times are of the monotonic clock, which all processes share.  ``sent_s`` is when the program was asked;
    ``times_s`` has one entry a token, when the worker had it in hand.  ``num_cached`` None: the program does not say.
    """

    number: int
    sent_s: float
    times_s: list[float]
    token_ids: list[int]
    num_cached: int | None = None
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        return self.times_s[0] - self.sent_s

    @property
    def tpot_s(self) -> float:
        return (self.times_s[-1] - self.times_s[0]) / (len(self.times_s) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The program has given its first token, ``first_token_s`` after ``started_s``.  ``pid`` is the root of the
    processes whose memory counts; ``about`` says what runs: version, flags, what it reports of itself."""

    started_s: float | None
    first_token_s: float
    pid: int
    about: dict[str, Any]


MESSAGES = {"ask": Ask, "answer": Answer, "ready": Ready}
_NAMES = {kind: name for name, kind in MESSAGES.items()}


class WireError(Exception):
    """A line that is not a message."""


def to_line(message: Ask | Answer | Ready) -> str:
    return json.dumps({"kind": _NAMES[type(message)], **asdict(message)}) + "\n"


def from_line(line: str | bytes) -> Ask | Answer | Ready:
    """Raises ``WireError`` for anything else."""
    try:
        fields = json.loads(line)
        return MESSAGES[fields.pop("kind")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WireError(f"not a message ({error!r}): {line[:200]!r}") from None
