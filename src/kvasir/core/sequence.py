"""A sequence: one running stream of tokens, known to the scheduler by its progress only."""

from enum import Enum

from kvasir.core.request import Request


class SequenceStatus(Enum):
    WAITING = "waiting"
    """In the queue; holds no blocks."""
    RUNNING = "running"
    """Scheduled each step while tokens and blocks allow."""
    FORKING = "forking"
    """A sibling (n > 1) that holds a seat and waits for the first sequence to finish the shared prompt."""
    FINISHED = "finished"


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Sequence:
    """``num_computed_tokens`` chasing ``num_tokens``; prefill and decode are the same thing at different distance.

    token_ids:  [ prompt ................ | generated ...... ]
                0            num_prompt_tokens         num_tokens
                [ computed (in cache) .......... | to compute )
                                     num_computed_tokens

    Once prompt tokens have been evicted, position p from the prompt's end on has slot p - ``num_evicted_tokens``.
    """

    __slots__ = (
        "finish_reason",
        "index",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_evicted_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "request",
        "sequence_id",
        "status",
        "stop_token_id",
        "token_ids",
    )

    def __init__(self, *, sequence_id: int, request: Request, index: int = 0) -> None:
        self.sequence_id = sequence_id
        self.request = request
        self.index = index
        self.token_ids: list[int] = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        """Prompt tokens found in the prefix cache when the sequence was first scheduled; reported in usage."""
        self.num_evicted_tokens = 0
        """Prompt tokens that every head has given up; set and reset by the block manager."""
        self.num_preemptions = 0
        self.status = SequenceStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_token_id: int | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """More than the newest token is missing from the cache."""
        return len(self.token_ids) - self.num_computed_tokens > 1

    def __repr__(self) -> str:
        return (
            f"Sequence({self.sequence_id}, {self.request.request_id!r}[{self.index}], {self.status.value}, "
            f"{self.num_computed_tokens}/{self.num_tokens})"
        )
