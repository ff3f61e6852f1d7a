"""Teacher forcing on the real engine: the scheduler asks for tokens, a document says which, logits go to a sink."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from kvasir.core.errors import InvariantViolation
from kvasir.core.events import RequestFinishedEvent
from kvasir.core.progress import Progress, no_progress
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.core.step import SampledToken, StepPlan, StepResult, StepRow
from kvasir.engine.engine import Engine
from kvasir.engine.runner import ModelRunner
from kvasir.lab.document import I64, Document


class RowSink(Protocol):
    def __call__(self, document: int, first: int, logits: Tensor) -> None:
        """Logits fp32 [n, vocab_size] that predict the scored tokens [first, first + n) of document ``document``.

        Rows of a document come in order, each exactly once.
        """
        ...


@dataclass(slots=True)
class _Reading:
    """A document on its way through the engine.  ``num_seen``: how many of its scored tokens the sink has got."""

    number: int
    document: Document
    indices: I64
    sink: RowSink
    num_seen: int = 0


class ForcedExecutor:
    """A ``ModelRunner`` whose tokens come from documents while there are any, and from its sampler otherwise.

    Everything else is what serves: the scheduler's plans, block tables, chunks, batches, preemption.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._readings: dict[int, _Reading] = {}

    def force(self, sequence_id: int, number: int, document: Document, sink: RowSink) -> None:
        """Sequence ``sequence_id`` is ``document`` from now on."""
        self._readings[sequence_id] = _Reading(number, document, document.scored_indices(), sink)

    def release(self) -> None:
        """Forget all documents.  Raises ``InvariantViolation`` when one of them was not read to its end."""
        for reading in self._readings.values():
            if reading.num_seen != len(reading.indices):
                raise InvariantViolation(
                    f"document {reading.number}: {reading.num_seen} of {len(reading.indices)} scored tokens were seen"
                )
        self._readings.clear()

    def execute(self, plan: StepPlan) -> StepResult:
        if not self._readings:
            return self._runner.execute(plan)
        picks = [self._pick(row) for row in plan.rows]
        starts = np.cumsum([0, *(len(row.token_ids) for row in plan.rows)])
        tokens = np.concatenate([start + pick for start, (_, pick) in zip(starts[:-1], picks, strict=True)])
        logits = self._runner.forward_logits(plan, tokens)
        for (reading, _), rows in zip(picks, logits.split([len(pick) for _, pick in picks]), strict=True):
            if len(rows):
                reading.sink(reading.number, reading.num_seen, rows)
                reading.num_seen += len(rows)
        return StepResult(step_id=plan.step_id, tokens=tuple(self._next_tokens(plan)))

    def _pick(self, row: StepRow) -> tuple[_Reading, I64]:
        """Which of the row's tokens predict a scored token that the sink has not got, as numbers within the row.

        The token at position p predicts the one with index p + 1.  What is computed again after a preemption was seen
        before.
        """
        reading = self._readings.get(row.sequence_id)
        if reading is None:
            raise InvariantViolation(f"sequence {row.sequence_id} runs beside documents, but is none")
        first, last = row.position + 1, row.position + len(row.token_ids)
        start = max(reading.num_seen, int(np.searchsorted(reading.indices, first)))
        end = max(start, int(np.searchsorted(reading.indices, last, side="right")))
        if start > reading.num_seen and end > start:
            raise InvariantViolation(f"document {reading.number} was skipped up to token {reading.indices[start]}")
        return reading, reading.indices[start:end] - first

    def _next_tokens(self, plan: StepPlan) -> list[SampledToken]:
        tokens = []
        for row in plan.rows:
            for sequence_id in row.sample_for:
                document = self._readings[sequence_id].document
                tokens.append(SampledToken(sequence_id, document.token_ids[row.position + len(row.token_ids)]))
        return tokens


class Reader:
    """Reads documents through one engine, which must have no other work meanwhile."""

    def __init__(self, engine: Engine, executor: ForcedExecutor) -> None:
        self._engine = engine
        self._executor = executor
        self._num_read = 0

    def read(self, documents: list[tuple[int, Document]], sink: RowSink, progress: Progress = no_progress) -> None:
        """Numbered documents, all queued at once and in this order, each under a cache salt of its own, so that every
        token is computed.  ``progress`` gets the share of tokens done."""
        total = sum(len(document.token_ids) for _, document in documents)
        num_done = 0
        lengths: dict[str, int] = {}
        for number, document in documents:
            request_id = f"document-{self._num_read}"
            self._num_read += 1
            lengths[request_id] = len(document.token_ids)
            self._engine.add_request(_request(request_id, document))
            (sequence,) = self._engine.scheduler.records[request_id].sequences
            self._executor.force(sequence.sequence_id, number, document, sink)
        while self._engine.has_work:
            for event in self._engine.step():
                if isinstance(event, RequestFinishedEvent):
                    if event.error is not None:
                        raise InvariantViolation(f"{event.request_id} failed: {event.error}")
                    num_done += lengths[event.request_id]
                    progress("read", num_done / total)
        self._executor.release()


def _request(request_id: str, document: Document) -> Request:
    num_prompt = len(document.token_ids) - document.num_decoded
    return Request(
        request_id=request_id,
        prompt_token_ids=document.token_ids[:num_prompt],
        sampling=SamplingParams(temperature=0.0, max_tokens=document.num_decoded, ignore_eos=True),
        cache_salt=request_id,
        num_pinned_tokens=min(document.num_pinned, num_prompt),
    )
