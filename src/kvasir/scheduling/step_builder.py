"""Collects what one step will do while the scheduler decides, and freezes it into a ``StepPlan``."""

from kvasir.core.sequence import Sequence
from kvasir.core.step import BlockCopy, Compaction, SequenceStart, StepPlan, StepRow
from kvasir.kv.manager import Reservation


class StepBuilder:
    """One per step.  ``ended`` are sequences the executor may forget; a sequence that comes back is started again."""

    def __init__(self, step_id: int, ended: list[int]) -> None:
        self._step_id = step_id
        self._ended = ended
        self._rows: list[StepRow] = []
        self._starts: list[SequenceStart] = []
        self._copies: list[BlockCopy] = []

    def __len__(self) -> int:
        return len(self._rows)

    def start(self, sequence: Sequence) -> None:
        self._starts.append(
            SequenceStart(
                sequence_id=sequence.sequence_id,
                token_ids=tuple(sequence.token_ids),
                num_prompt_tokens=sequence.num_prompt_tokens,
                sampling=sequence.request.sampling,
                eos_token_ids=sequence.request.eos_token_ids,
                index=sequence.index,
            )
        )

    def add_row(
        self, sequence: Sequence, num_tokens: int, reservation: Reservation, sample_for: tuple[int, ...]
    ) -> None:
        position = sequence.num_computed_tokens
        token_ids = sequence.token_ids
        tokens = (token_ids[position],) if num_tokens == 1 else tuple(token_ids[position : position + num_tokens])
        updates, copies = reservation
        self._rows.append(
            StepRow(sequence.sequence_id, position, tokens, updates, sample_for, sequence.num_evicted_tokens)
        )
        if copies:
            self._copies.extend(copies)

    def add_decode(self, sequence: Sequence) -> None:
        """The row of a sequence that computes its newest token and draws the next; its blocks are as they were."""
        position = sequence.num_computed_tokens
        sequence_id = sequence.sequence_id
        # One of these is made for every running sequence in every step: past the class's own __new__ is twice as fast.
        tokens, num_evicted = (sequence.token_ids[position],), sequence.num_evicted_tokens
        self._rows.append(tuple.__new__(StepRow, (sequence_id, position, tokens, (), (sequence_id,), num_evicted)))

    def build(self, compactions: tuple[Compaction, ...] = ()) -> StepPlan:
        return StepPlan(
            step_id=self._step_id,
            rows=tuple(self._rows),
            starts=tuple(self._starts),
            ended=tuple(self._ended),
            copies=tuple(self._copies),
            compactions=compactions,
        )
