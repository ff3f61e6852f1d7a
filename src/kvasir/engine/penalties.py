"""What a request changes about the logits before a token is chosen: bans, biases, penalties for what was said."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvasir.core.sampling import SamplingParams
from kvasir.core.step import SequenceStart
from kvasir.engine.ranking import F32, I64


class TokenCounts:
    """The distinct tokens of one sequence and how often each was generated.

    ``ids`` int64 [n] and ``num_generated`` fp32 [n] are views, valid until the next ``add``.  A prompt token that was
    never generated has 0.  One entry per distinct token: never more than the vocabulary.
    """

    __slots__ = ("_entry_of", "_ids", "_num_generated")

    def __init__(self, prompt: Iterable[int], generated: Iterable[int]) -> None:
        self._entry_of: dict[int, int] = {}
        self._ids = np.zeros(64, dtype=np.int64)
        self._num_generated = np.zeros(64, dtype=np.float32)
        for token_id in prompt:
            self._entry(token_id)
        for token_id in generated:
            self.add(token_id)

    @property
    def ids(self) -> I64:
        return self._ids[: len(self._entry_of)]

    @property
    def num_generated(self) -> F32:
        return self._num_generated[: len(self._entry_of)]

    def add(self, token_id: int) -> None:
        """One more ``token_id`` was generated."""
        entry = self._entry(token_id)
        self._num_generated[entry] += 1.0

    def _entry(self, token_id: int) -> int:
        entry = self._entry_of.setdefault(token_id, len(self._entry_of))
        if entry == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._num_generated = np.concatenate([self._num_generated, np.zeros_like(self._num_generated)])
        self._ids[entry] = token_id
        return entry


class LogitEdits:
    """What one sequence changes about its row, as arrays that are made once and kept up to date."""

    __slots__ = ("banned_ids", "bias", "bias_ids", "counts", "frequency", "min_tokens", "presence", "repetition")

    def __init__(self, start: SequenceStart) -> None:
        sampling = start.sampling
        summed: dict[int, float] = {}
        for token_id, bias in sampling.logit_bias:
            summed[token_id] = summed.get(token_id, 0.0) + bias
        self.bias_ids = np.array(list(summed), dtype=np.int64)
        self.bias = np.array(list(summed.values()), dtype=np.float32)
        self.min_tokens = sampling.min_tokens
        self.banned_ids = np.array(sorted({*start.eos_token_ids, *sampling.stop_token_ids}), dtype=np.int64)
        self.repetition = sampling.repetition_penalty
        self.presence = sampling.presence_penalty
        self.frequency = sampling.frequency_penalty
        self.counts: TokenCounts | None = None
        if _has_penalty(sampling):
            # Only the repetition penalty looks at the prompt.
            prompt = start.token_ids[: start.num_prompt_tokens] if sampling.repetition_penalty != 1.0 else ()
            self.counts = TokenCounts(prompt, start.token_ids[start.num_prompt_tokens :])


def make_edits(start: SequenceStart) -> LogitEdits | None:
    """None when the sequence leaves its logits as they are, which is the common case."""
    sampling = start.sampling
    if _has_penalty(sampling) or sampling.logit_bias or sampling.min_tokens:
        return LogitEdits(start)
    return None


def edit_logits(logits: F32, rows: Sequence[int], edits: Sequence[LogitEdits], num_outputs: Sequence[int]) -> None:
    """Change ``logits`` [R, V] in place in ``rows``, each by its ``edits`` after ``num_outputs`` generated tokens.

    In this order, as vLLM does it: bans while fewer than ``min_tokens`` came, bias, repetition (over prompt and
    output), frequency and presence (over output).
    """
    owners = list(zip(rows, edits, strict=True))
    banning = [(row, e.banned_ids) for (row, e), n in zip(owners, num_outputs, strict=True) if n < e.min_tokens]
    if banning:
        logits[_entries(banning)] = -np.inf
    biased = [(row, e.bias_ids, e.bias) for row, e in owners if len(e.bias_ids)]
    if biased:
        logits[_entries([(row, ids) for row, ids, _ in biased])] += np.concatenate([bias for _, _, bias in biased])
    penalised = [(row, e, e.counts) for row, e in owners if e.counts is not None]
    if penalised:
        _penalise(logits, penalised)


def _penalise(logits: F32, penalised: Sequence[tuple[int, LogitEdits, TokenCounts]]) -> None:
    entries = _entries([(row, counts.ids) for row, _, counts in penalised])
    lengths = [len(counts.ids) for _, _, counts in penalised]
    strengths = np.array([(e.repetition, e.frequency, e.presence) for _, e, _ in penalised], dtype=np.float32)
    repetition, frequency, presence = np.repeat(strengths, lengths, axis=0).T
    num_generated = np.concatenate([counts.num_generated for _, _, counts in penalised])
    values = logits[entries]
    values = np.where(values > 0, values / repetition, values * repetition)
    values -= frequency * num_generated
    values -= presence * (num_generated > 0)
    logits[entries] = values


def _entries(owned_ids: Sequence[tuple[int, I64]]) -> tuple[NDArray[np.intp], I64]:
    """Index arrays that name every (row, token id) at once."""
    lengths = [len(ids) for _, ids in owned_ids]
    rows = np.repeat(np.array([row for row, _ in owned_ids], dtype=np.intp), lengths)
    return rows, np.concatenate([ids for _, ids in owned_ids])


def _has_penalty(sampling: SamplingParams) -> bool:
    return (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1.0, 0.0, 0.0)
