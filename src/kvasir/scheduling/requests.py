"""The scheduler's record of one admitted request, from admission to its single terminal event."""

from dataclasses import dataclass, field

from kvasir.core.events import RequestFinishedEvent
from kvasir.core.request import Request
from kvasir.core.sequence import FinishReason, Sequence, SequenceStatus


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """``sequences[0]`` computes the prompt; its siblings (n > 1) fork from it.  Times are the clock's seconds."""

    request: Request
    sequences: list[Sequence]
    max_tokens: int
    stop_ids: frozenset[int]
    arrival_s: float
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    num_unfinished: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_unfinished = len(self.sequences)

    @property
    def is_finished(self) -> bool:
        return self.num_unfinished == 0

    def finish_sequence(self, sequence: Sequence, reason: FinishReason) -> None:
        """Mark ``sequence`` ended; it must not be ended already."""
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        self.num_unfinished -= 1

    def finished_event(self, now_s: float, error: str | None = None) -> RequestFinishedEvent:
        """The terminal event; its reason is the most telling one over all sequences."""
        reasons = {sequence.finish_reason for sequence in self.sequences}
        reason = next(r for r in _MOST_TELLING if r in reasons)
        ttft_s = None if self.first_token_s is None else self.first_token_s - self.arrival_s
        scheduled_s = now_s if self.first_scheduled_s is None else self.first_scheduled_s
        return RequestFinishedEvent(
            request_id=self.request.request_id,
            finish_reason=reason,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_cached_tokens=self.sequences[0].num_cached_tokens,
            num_output_tokens=sum(sequence.num_output_tokens for sequence in self.sequences),
            num_preemptions=sum(sequence.num_preemptions for sequence in self.sequences),
            queue_s=scheduled_s - self.arrival_s,
            ttft_s=ttft_s,
            e2e_s=now_s - self.arrival_s,
            error=error,
        )


_MOST_TELLING = (FinishReason.ERROR, FinishReason.ABORT, FinishReason.LENGTH, FinishReason.STOP)
