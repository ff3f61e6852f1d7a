"""What a step's tokens mean for their sequences: go on, or end, and what the client is told."""

from collections.abc import Callable

from kvasir.core.clock import Clock
from kvasir.core.events import Event, TokensEvent
from kvasir.core.sequence import FinishReason, Sequence, SequenceStatus
from kvasir.core.step import StepResult
from kvasir.scheduling.requests import RequestRecord
from kvasir.scheduling.stats import SchedulerStats


class Completion:
    """Appends sampled tokens, finds the end of sequences, and makes exactly one terminal event per request.

    ``end_sequence`` and ``end_request`` are the scheduler's own: they give back blocks, seats and records.
    """

    def __init__(
        self,
        *,
        end_sequence: Callable[[Sequence], None],
        end_request: Callable[[RequestRecord], None],
        stats: SchedulerStats,
        clock: Clock,
    ) -> None:
        self._end_sequence = end_sequence
        self._end_request = end_request
        self._stats = stats
        self._clock = clock

    def take_tokens(
        self, result: StepResult, sequences: dict[int, Sequence], records: dict[str, RequestRecord]
    ) -> list[Event]:
        """Events of one step, in the order of ``result.tokens``; mutates sequences and records."""
        now_s = self._clock.now_s()
        events: list[Event] = []
        for sequence_id, token_id, logprobs in result.tokens:
            sequence = sequences[sequence_id]
            request_id = sequence.request.request_id
            record = records[request_id]
            if record.first_token_s is None:
                record.first_token_s = now_s
            token_ids = sequence.token_ids
            token_ids.append(token_id)
            reason = None
            if len(token_ids) - sequence.num_prompt_tokens >= record.max_tokens or token_id in record.stop_ids:
                reason = self._finish_reason(record, sequence, token_id)
            # One a token: past the class's own __new__ is twice as fast.
            event = (
                request_id,
                sequence.index,
                (token_id,),
                () if logprobs is None else (logprobs,),
                reason,
                sequence.stop_token_id,
            )
            events.append(tuple.__new__(TokensEvent, event))
            if reason is not None:
                record.finish_sequence(sequence, reason)
                self._end_sequence(sequence)
                if record.num_unfinished == 0:
                    self._finish_request(record, events, now_s)
        self._stats.num_generated_tokens += len(result.tokens)
        for sequence_id, error in result.failed.items():
            sequence = sequences.get(sequence_id)
            if sequence is not None:
                self._fail(records[sequence.request.request_id], sequence, error, events, now_s)
        return events

    def end_all(self, record: RequestRecord, reason: FinishReason) -> list[Event]:
        """End what is left of a request; one TokensEvent per unfinished sequence, then the terminal event."""
        events: list[Event] = []
        self._end_unfinished(record, reason, events)
        self._finish_request(record, events, self._clock.now_s())
        return events

    def stop_sequence(self, record: RequestRecord, sequence: Sequence) -> list[Event]:
        """End one sequence that has output, as STOP; [] when it is over or has produced nothing yet."""
        if sequence.status is SequenceStatus.FINISHED or sequence.num_output_tokens == 0:
            return []
        record.finish_sequence(sequence, FinishReason.STOP)
        self._end_sequence(sequence)
        events: list[Event] = []
        if record.is_finished:
            self._finish_request(record, events, self._clock.now_s())
        return events

    def _finish_reason(self, record: RequestRecord, sequence: Sequence, token_id: int) -> FinishReason | None:
        """Whether the token just appended ends its sequence."""
        num_output = len(sequence.token_ids) - sequence.num_prompt_tokens
        if token_id in record.stop_ids and num_output >= record.request.sampling.min_tokens:
            sequence.stop_token_id = token_id
            return FinishReason.STOP
        return FinishReason.LENGTH if num_output >= record.max_tokens else None

    def _fail(self, record: RequestRecord, sequence: Sequence, error: str, events: list[Event], now_s: float) -> None:
        """One unusable sequence ends its whole request; nobody else is touched."""
        if record.is_finished:
            return
        self._end_unfinished(record, FinishReason.ERROR, events)
        self._finish_request(record, events, now_s, error)

    def _end_unfinished(self, record: RequestRecord, reason: FinishReason, events: list[Event]) -> None:
        for sequence in record.sequences:
            if sequence.finish_reason is None:
                record.finish_sequence(sequence, reason)
                self._end_sequence(sequence)
                events.append(
                    TokensEvent(
                        request_id=record.request.request_id,
                        index=sequence.index,
                        token_ids=(),
                        finish_reason=reason,
                    )
                )

    def _finish_request(
        self, record: RequestRecord, events: list[Event], now_s: float, error: str | None = None
    ) -> None:
        self._end_request(record)
        events.append(record.finished_event(now_s, error))
