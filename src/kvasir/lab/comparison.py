"""Reads documents under the reference and every other local setting, and compares them token by token."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvasir.core.errors import ConfigError, KvasirError
from kvasir.core.progress import Progress
from kvasir.lab.divergence import compare_rows, negative_log_likelihoods
from kvasir.lab.document import Document, Scores
from kvasir.lab.subject import LocalSubject

_WAVE_BYTES = 384 << 20
"""Logits of the reference that are held at once, unless a single document has more."""


class NotFiniteError(KvasirError):
    """A setting whose logits are not numbers: there is nothing to measure."""

    code = "not_finite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``by_subject[name][i]`` are the scores of document i; the reference is there too, with a divergence of 0."""

    reference: str
    by_subject: dict[str, list[Scores]]


def compare(
    reference: LocalSubject, others: Sequence[LocalSubject], documents: Sequence[Document], progress: Progress
) -> Comparison:
    """Documents are read in waves, so that only a wave's logits of the reference are ever held.

    Raises ``ConfigError`` when vocabularies differ and ``NotFiniteError`` when a setting computes no numbers.
    """
    for other in others:
        if other.vocab_size != reference.vocab_size:
            raise ConfigError(
                f"{other.name} has a vocabulary of {other.vocab_size} and {reference.name} one of "
                f"{reference.vocab_size}; their distributions cannot be compared."
            )
    found: dict[str, list[Scores]] = {subject.name: [] for subject in (reference, *others)}
    total = sum(len(document.token_ids) for document in documents) * (1 + len(others))
    done = 0
    for wave in _waves(documents, reference.vocab_size * 4):
        wave_tokens = sum(len(document.token_ids) for document in wave)
        truth = [_Truth(document, reference.vocab_size) for document in wave]
        for subject in (reference, *others):
            progress(subject.name, done / total)
            taker = (_Keeping if subject is reference else _Comparing)(truth, subject.name)
            subject.read(wave, taker)
            found[subject.name] += [_scores(document, rows) for document, rows in zip(wave, taker.rows, strict=True)]
            done += wave_tokens
    progress(reference.name, 1.0)
    return Comparison(reference=reference.name, by_subject=found)


def _waves(documents: Sequence[Document], row_bytes: int) -> list[list[Document]]:
    waves: list[list[Document]] = []
    held_bytes = _WAVE_BYTES
    for document in documents:
        held_bytes += document.num_scored * row_bytes
        if held_bytes > _WAVE_BYTES:
            waves.append([])
            held_bytes = document.num_scored * row_bytes
        waves[-1].append(document)
    return waves


class _Truth:
    """The reference's logits of one document's scored tokens, and the tokens themselves."""

    def __init__(self, document: Document, vocab_size: int) -> None:
        self.logits = torch.empty(document.num_scored, vocab_size)
        self.targets = torch.from_numpy(np.array(document.token_ids, dtype=np.int64)[document.scored_indices()])


class _Rows:
    """nll, kl and agreement of one document, filled as its logits come."""

    def __init__(self, num_scored: int) -> None:
        self.nll = np.zeros(num_scored)
        self.kl = np.zeros(num_scored)
        self.is_same_best = np.ones(num_scored, dtype=np.bool_)


class _Taking(ABC):
    """The sink of one subject's logits."""

    def __init__(self, truth: list[_Truth], name: str) -> None:
        self._truth = truth
        self._name = name
        self.rows = [_Rows(len(one.targets)) for one in truth]

    def __call__(self, document: int, first: int, logits: Tensor) -> None:
        rows, part = self.rows[document], slice(first, first + len(logits))
        self.take(self._truth[document], rows, part, logits)
        # NaN or infinity anywhere in a row shows in its sums.
        if not (np.isfinite(rows.nll[part]).all() and np.isfinite(rows.kl[part]).all()):
            raise NotFiniteError(f"The setting {self._name!r} computes logits that are not finite; it is broken.")

    @abstractmethod
    def take(self, truth: _Truth, rows: _Rows, part: slice, logits: Tensor) -> None: ...


class _Keeping(_Taking):
    def take(self, truth: _Truth, rows: _Rows, part: slice, logits: Tensor) -> None:
        truth.logits[part] = logits
        rows.nll[part] = negative_log_likelihoods(logits, truth.targets[part]).numpy()


class _Comparing(_Taking):
    def take(self, truth: _Truth, rows: _Rows, part: slice, logits: Tensor) -> None:
        scores = compare_rows(truth.logits[part], logits, truth.targets[part])
        rows.nll[part] = scores.nll.numpy()
        rows.kl[part] = scores.kl.numpy()
        rows.is_same_best[part] = scores.is_same_best.numpy()


def _scores(document: Document, rows: _Rows) -> Scores:
    indices = document.scored_indices()
    return Scores(
        indices=indices,
        nll=rows.nll,
        kl=rows.kl,
        is_same_best=rows.is_same_best,
        # The token before a decoded one is computed at the end of the prompt, in prefill.
        is_decoded=indices > len(document.token_ids) - document.num_decoded,
    )
