"""Asks questions with known answers under every setting: share of answers found, and what the right answer cost."""

from collections.abc import Mapping, Sequence

import numpy as np

from kvasir.claims.result_file import Better
from kvasir.lab.chat import Chat, encode_chat, num_instruction_tokens
from kvasir.lab.document import Document
from kvasir.lab.estimate import F64, Estimate, mean_of
from kvasir.lab.figures import Metric, SettingFigures
from kvasir.lab.lab import Lab
from kvasir.lab.tasks.sample import Sample, score

FOUND = Metric(key="found", label="answers found", unit="share", better=Better.HIGHER, is_headline=True)
FOUND_LOSS = Metric(key="found_loss", label="answers lost", unit="share", is_damage=True)
ANSWER_NLL = Metric(key="answer_nll", label="NLL of the right answer", unit="nats/token")
ANSWER_LOSS = Metric(key="answer_loss", label="answer loss", unit="nats/token", is_damage=True, is_headline=True)
METRICS = (FOUND, FOUND_LOSS, ANSWER_NLL, ANSWER_LOSS)


class Retrieval:
    """The outcome of ``samples`` under every subject of ``lab``: ``found[name][i]`` in [0, 1], ``answer_nll[name][i]``
    nats per token of the right answer after its lead (only of subjects that run here)."""

    def __init__(self, lab: Lab, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self._reference = lab.reference.name
        chats = [Chat(turns=(sample.prompt,), max_tokens=sample.max_tokens) for sample in samples]
        self.found: dict[str, F64] = {
            name: np.array([score(reply.text, sample.answers) for reply, sample in zip(replies, samples, strict=True)])
            for name, replies in lab.ask(chats).items()
        }
        self.answer_nll: dict[str, F64] = {}
        if lab.can_score:
            comparison = lab.compare([answer_document(lab, sample) for sample in samples])
            self.answer_nll = {
                name: np.array([document.nll.mean() for document in scores])
                for name, scores in comparison.by_subject.items()
            }

    def figures(self, groups: Mapping[str, Sequence[int]]) -> dict[str, SettingFigures]:
        """Per setting, over all samples and by group (name -> numbers of its samples)."""
        everything = range(len(self.samples))
        return {
            name: SettingFigures(
                overall=self._figures(name, everything),
                tasks={group: self._figures(name, numbers) for group, numbers in groups.items()},
            )
            for name in dict.fromkeys([*self.found, *self.answer_nll])
        }

    def by_task(self) -> dict[str, list[int]]:
        """Numbers of the samples of each task, in the order tasks first appear."""
        groups: dict[str, list[int]] = {}
        for number, sample in enumerate(self.samples):
            groups.setdefault(sample.task, []).append(number)
        return groups

    def _figures(self, name: str, numbers: Sequence[int]) -> dict[str, Estimate]:
        figures: dict[str, Estimate] = {}
        if name in self.found:
            figures |= _with_loss(FOUND, FOUND_LOSS, self.found, name, self._reference, numbers)
        if name in self.answer_nll:
            figures |= _with_loss(ANSWER_NLL, ANSWER_LOSS, self.answer_nll, name, self._reference, numbers)
        return figures


def answer_document(lab: Lab, sample: Sample) -> Document:
    """The prompt, the lead and the right answer; scored on the answer, which is decoded token by token."""
    tokenizer = lab.tokenizer
    messages = [{"role": "user", "content": sample.prompt}]
    prompt = encode_chat(tokenizer, messages)
    lead = tokenizer.encode(sample.lead, add_special_tokens=False)
    whole = tokenizer.encode(f"{sample.lead} {sample.expected}", add_special_tokens=False)
    # A tokenizer may join the end of the lead with the answer: what is scored starts where the two part.
    shared = next((i for i, (a, b) in enumerate(zip(lead, whole, strict=False)) if a != b), min(len(lead), len(whole)))
    start = len(prompt) + shared
    token_ids = (*prompt, *whole)
    return Document(
        token_ids=token_ids,
        scored=((start, len(token_ids)),),
        num_decoded=max(1, len(token_ids) - start),
        num_pinned=num_instruction_tokens(tokenizer, messages),
    )


def _with_loss(
    metric: Metric, loss: Metric, values: Mapping[str, F64], name: str, reference: str, numbers: Sequence[int]
) -> dict[str, Estimate]:
    """The metric, and how much worse it is than the reference's, sample by sample."""
    chosen = np.array(numbers, dtype=np.int64)
    ours, theirs = values[name][chosen], values[reference][chosen]
    lost = theirs - ours if metric.better is Better.HIGHER else ours - theirs
    return {metric.key: mean_of(_blocks(ours)), loss.key: mean_of(_blocks(lost))}


def _blocks(values: F64) -> list[F64]:
    """Every sample is a document of its own."""
    return [values[i : i + 1] for i in range(len(values))]
