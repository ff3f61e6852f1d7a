"""Chooses the next token of every sequence of a step, and keeps what that needs to know of each sequence."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kvasir.core.errors import InvariantViolation
from kvasir.core.step import SampledToken, SequenceStart, TokenLogprobs
from kvasir.engine.draw import draw
from kvasir.engine.draw_rows import DrawRows
from kvasir.engine.logprobs import token_logprobs
from kvasir.engine.penalties import LogitEdits, edit_logits, make_edits
from kvasir.engine.ranking import F32, I64
from kvasir.engine.rng import seeded_key, uniforms, unseeded_key

_NO_LOGPROBS = -1


@dataclass(slots=True, kw_only=True)
class Sampled:
    """``tokens`` in the order asked for, without the ``failed`` ones (sequence id -> reason)."""

    tokens: tuple[SampledToken, ...]
    failed: dict[int, str] = field(default_factory=dict)


class Sampler:
    """Learns sequences with ``start``, forgets them with ``end``, and draws for any mix of them with ``sample``.

    A sequence's token depends on its own logits, settings, seed, index, tokens so far and on nothing else: not on who
    else is sampled in the step, in which order, or what was sampled before a preemption.  A request without a seed
    draws from a stream named by ``seed`` and its sequence id.
    """

    def __init__(self, *, max_num_seqs: int, seed: int = 0) -> None:
        self._seed = seed
        self._free = list(range(max_num_seqs - 1, -1, -1))
        self._slot_of: dict[int, int] = {}
        self._edits: dict[int, LogitEdits] = {}
        self._temperature = np.zeros(max_num_seqs, dtype=np.float32)
        self._top_k = np.zeros(max_num_seqs, dtype=np.int64)
        self._top_p = np.ones(max_num_seqs)
        self._min_p = np.zeros(max_num_seqs)
        self._key = np.zeros(max_num_seqs, dtype=np.uint64)
        self._index = np.zeros(max_num_seqs, dtype=np.int64)
        self._num_outputs = np.zeros(max_num_seqs, dtype=np.int64)
        self._num_logprobs = np.full(max_num_seqs, _NO_LOGPROBS, dtype=np.int64)

    def start(self, start: SequenceStart) -> None:
        """Learn a sequence with the tokens it has so far."""
        if start.sequence_id in self._slot_of or not self._free:
            raise InvariantViolation(f"sequence {start.sequence_id} is known already, or there is no room for it")
        slot = self._free.pop()
        self._slot_of[start.sequence_id] = slot
        sampling = start.sampling
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        seed = sampling.seed
        self._key[slot] = unseeded_key(self._seed, start.sequence_id) if seed is None else seeded_key(seed)
        self._index[slot] = start.index
        self._num_outputs[slot] = len(start.token_ids) - start.num_prompt_tokens
        self._num_logprobs[slot] = _NO_LOGPROBS if sampling.logprobs is None else sampling.logprobs
        edits = make_edits(start)
        if edits is not None:
            self._edits[slot] = edits

    def end(self, sequence_id: int) -> None:
        slot = self._slot_of.pop(sequence_id, None)
        if slot is None:
            raise InvariantViolation(f"sequence {sequence_id} ended, but the sampler never learned of it")
        self._edits.pop(slot, None)
        self._free.append(slot)

    def takes_best(self, sequence_ids: Sequence[int]) -> NDArray[np.bool_]:
        """Of each sequence [S]: whether its largest logit is all it needs to know."""
        slots = self._slots(sequence_ids)
        wants_best = (self._temperature[slots] == 0.0) & (self._num_logprobs[slots] == _NO_LOGPROBS)
        if self._edits:
            wants_best &= [slot not in self._edits for slot in slots.tolist()]
        return wants_best

    def sample_best(self, sequence_ids: Sequence[int], tokens: I64, maxima: F32) -> Sampled:
        """What ``sample`` gives for sequences that take the best token: ``tokens`` [S] with logits ``maxima`` [S]."""
        slots = self._slots(sequence_ids)
        is_usable = np.isfinite(maxima)
        self._remember(slots[is_usable], tokens[is_usable])
        return _pack(sequence_ids, tokens.tolist(), is_usable.tolist(), maxima, {})

    def sample(self, sequence_ids: Sequence[int], logits: Tensor) -> Sampled:
        """One token for each sequence from its row of ``logits`` fp32 [S, V], which is changed in place.

        A row that is not finite, or where nothing may be drawn, fails alone.  Drawn tokens count as generated.
        """
        values: F32 = logits.numpy()
        slots = self._slots(sequence_ids)
        if self._edits:
            self._edit(values, slots)
        tokens, maxima = self._choose(values, slots)
        is_usable = np.isfinite(maxima)
        logprobs = self._logprobs(values, maxima, tokens, slots, is_usable)
        self._remember(slots[is_usable], tokens[is_usable])
        return _pack(sequence_ids, tokens.tolist(), is_usable.tolist(), maxima, logprobs)

    def _slots(self, sequence_ids: Sequence[int]) -> I64:
        return np.fromiter((self._slot_of[i] for i in sequence_ids), dtype=np.int64, count=len(sequence_ids))

    def _edit(self, logits: F32, slots: I64) -> None:
        rows = [row for row, slot in enumerate(slots.tolist()) if slot in self._edits]
        if rows:
            edits = [self._edits[slot] for slot in slots[rows].tolist()]
            edit_logits(logits, rows, edits, self._num_outputs[slots[rows]].tolist())

    def _choose(self, logits: F32, slots: I64) -> tuple[I64, F32]:
        """Tokens [S] and the rows' largest logits [S]; where those are not finite the token means nothing."""
        is_random = self._temperature[slots] > 0.0
        if is_random.all():
            tokens = np.zeros(len(slots), dtype=np.int64)
            maxima = logits.max(axis=1)
        else:
            # Ties go to the lowest id; a NaN counts as the largest, so it shows in the maximum.
            tokens = logits.argmax(axis=1)
            maxima = logits[np.arange(len(slots)), tokens]
        rows = np.flatnonzero(is_random & np.isfinite(maxima))
        if len(rows):
            own = slots[rows]
            tokens[rows] = draw(
                DrawRows(
                    logits=logits if len(rows) == len(slots) else logits[rows],
                    maxima=maxima[rows],
                    temperature=self._temperature[own],
                    top_k=self._top_k[own],
                    top_p=self._top_p[own],
                    min_p=self._min_p[own],
                    uniforms=uniforms(self._key[own], self._index[own], self._num_outputs[own]),
                )
            )
        return tokens, maxima

    def _logprobs(
        self, logits: F32, maxima: F32, tokens: I64, slots: I64, is_usable: np.ndarray
    ) -> dict[int, TokenLogprobs]:
        """By row, for the rows whose sequences asked for them."""
        num_wanted = self._num_logprobs[slots]
        rows = np.flatnonzero((num_wanted != _NO_LOGPROBS) & is_usable)
        if not len(rows):
            return {}
        own = logits if len(rows) == len(slots) else logits[rows]
        entries = token_logprobs(own, maxima[rows], tokens[rows], num_wanted[rows])
        return dict(zip(rows.tolist(), entries, strict=True))

    def _remember(self, slots: I64, tokens: I64) -> None:
        self._num_outputs[slots] += 1
        if self._edits:
            for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
                edits = self._edits.get(slot)
                if edits is not None and edits.counts is not None:
                    edits.counts.add(token)


def _pack(
    sequence_ids: Sequence[int],
    tokens: list[int],
    is_usable: list[bool],
    maxima: F32,
    logprobs: dict[int, TokenLogprobs],
) -> Sampled:
    drawn = []
    failed = {}
    for row, sequence_id in enumerate(sequence_ids):
        if is_usable[row]:
            drawn.append(SampledToken(sequence_id, tokens[row], logprobs.get(row)))
        elif maxima[row] == -np.inf:
            failed[sequence_id] = "No token may be drawn: logit_bias and min_tokens together rule out every one."
        else:
            failed[sequence_id] = f"The model's logits are not finite (largest: {maxima[row]})."
    return Sampled(tokens=tuple(drawn), failed=failed)
