"""Degeneration: is freely generated text still text?  Repetition, loops, and what the reference finds improbable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from kvasir.claims.result_file import Better
from kvasir.lab.chat import Chat, Reply, encode_chat
from kvasir.lab.degenerate import distinct_share, first_difference, has_loop, repeated_share, zlib_ratio
from kvasir.lab.document import Document
from kvasir.lab.estimate import F64, Estimate, mean_of
from kvasir.lab.figures import MeasureResult, Metric, SettingFigures
from kvasir.lab.lab import Lab
from kvasir.lab.measure import Size
from kvasir.lab.prose import OPENINGS

TokenIds = Sequence[int]

_IMPROBABLE_NATS = -float(np.log(1e-4))
_TEMPERATURES = {"greedy": 0.0, "T=0.7": 0.7}

_METRICS = (
    Metric(key="improbable_rise", label="rise of improbable tokens", unit="share", is_damage=True, is_headline=True),
    Metric(key="improbable", label="tokens the reference gives less than 1e-4", unit="share"),
    Metric(key="rep4_rise", label="rise of repeated 4-grams", unit="share", is_damage=True, is_headline=True),
    Metric(key="rep4", label="repeated 4-grams", unit="share"),
    Metric(key="distinct2", label="distinct 2-grams", unit="share", better=Better.HIGHER),
    Metric(key="zlib", label="zlib ratio"),
    Metric(key="loops", label="answers that end in a loop", unit="share"),
    Metric(key="tokens", label="tokens of an answer", unit="tokens"),
    Metric(key="common", label="tokens before it leaves the reference's answer", unit="tokens", better=Better.HIGHER),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Degeneration:
    """The same prompts answered greedily and at temperature 0.7 with fixed seeds, through the chat template.

    The telling figure is the share of a setting's tokens to which the *reference*, reading that text, gives less than
    1e-4: gibberish shows at once, another wording does not.
    """

    name: ClassVar[str] = "degeneration"
    title: ClassVar[str] = "Free text"
    needs_scores: ClassVar[bool] = False

    num_prompts: int
    num_tokens: int

    @classmethod
    def sized(cls, size: Size, context: int) -> Self:
        room = max(16, context // 2)
        if size is Size.QUICK:
            return cls(num_prompts=4, num_tokens=min(96, room))
        return cls(num_prompts=20, num_tokens=min(256, room))

    def run(self, lab: Lab) -> MeasureResult:
        openings = [OPENINGS[i % len(OPENINGS)] for i in range(self.num_prompts)]
        chats = [
            Chat(turns=(opening,), max_tokens=self.num_tokens, temperature=temperature, seed=seed)
            for temperature in _TEMPERATURES.values()
            for seed, opening in enumerate(openings)
        ]
        groups = {
            name: list(range(i * self.num_prompts, (i + 1) * self.num_prompts)) for i, name in enumerate(_TEMPERATURES)
        }
        replies = lab.ask(chats)
        texts = _token_ids(lab, replies)
        truth = lab.reference.name
        samples = {
            name: _Samples(answers, texts[name], texts[truth], self._improbable(lab, chats, texts[name]))
            for name, answers in replies.items()
        }
        everything = list(range(len(chats)))
        settings = {
            name: SettingFigures(
                overall=own.figures(samples[truth], everything),
                tasks={group: own.figures(samples[truth], numbers) for group, numbers in groups.items()},
            )
            for name, own in samples.items()
        }
        return MeasureResult(name=self.name, title=self.title, metrics=_METRICS, settings=settings)

    @staticmethod
    def _improbable(lab: Lab, chats: Sequence[Chat], texts: Sequence[TokenIds]) -> list[F64] | None:
        """Per answer, one entry a token: 1 where the reference finds it improbable.  None without a local reference."""
        if not lab.can_score:
            return None
        documents, numbers = [], []
        for number, (chat, tokens) in enumerate(zip(chats, texts, strict=True)):
            prompt = encode_chat(lab.tokenizer, chat.messages)
            token_ids = (*prompt, *tokens)
            if tokens:
                documents.append(Document(token_ids=token_ids, scored=((len(prompt), len(token_ids)),)))
                numbers.append(number)
        found = [np.zeros(0)] * len(chats)
        for number, scores in zip(numbers, lab.score(documents), strict=True):
            found[number] = (scores.nll > _IMPROBABLE_NATS).astype(np.float64)
        return found


class _Samples:
    """The answers of one subject, each with its figures; ``improbable`` is None where nothing could read them."""

    def __init__(
        self,
        replies: Sequence[Reply],
        texts: Sequence[TokenIds],
        reference: Sequence[TokenIds],
        improbable: list[F64] | None,
    ) -> None:
        self.improbable = improbable
        self.values: dict[str, F64] = {
            "rep4": np.array([repeated_share(tokens, 4) for tokens in texts]),
            "distinct2": np.array([distinct_share(tokens, 2) for tokens in texts]),
            "zlib": np.array([zlib_ratio(reply.text) for reply in replies]),
            "loops": np.array([float(has_loop(tokens)) for tokens in texts]),
            "tokens": np.array([float(len(tokens)) for tokens in texts]),
            "common": np.array(
                [
                    float(len(ours) if (parted := first_difference(ours, theirs)) is None else parted)
                    for ours, theirs in zip(texts, reference, strict=True)
                ]
            ),
        }

    def figures(self, reference: "_Samples", numbers: Sequence[int]) -> dict[str, Estimate]:
        """Over the answers ``numbers``; rises are over the reference's own answers to the same prompts."""
        figures = {key: mean_of([values[i : i + 1] for i in numbers]) for key, values in self.values.items()}
        rise = self.values["rep4"] - reference.values["rep4"]
        figures["rep4_rise"] = mean_of([rise[i : i + 1] for i in numbers])
        if self.improbable is not None and reference.improbable is not None:
            figures["improbable"] = mean_of([self.improbable[i] for i in numbers])
            shares = [_share(self.improbable[i]) - _share(reference.improbable[i]) for i in numbers]
            figures["improbable_rise"] = mean_of([np.array([share]) for share in shares])
        return figures


def _share(is_improbable: F64) -> float:
    return float(is_improbable.mean()) if len(is_improbable) else 0.0


def _token_ids(lab: Lab, replies: Mapping[str, Sequence[Reply]]) -> dict[str, list[TokenIds]]:
    """What was generated, as the reference's token ids; as numbered words where only servers are asked."""
    if lab.can_score:
        return {
            name: [
                lab.tokenizer.encode(reply.text, add_special_tokens=False)
                if reply.token_ids is None
                else list(reply.token_ids)
                for reply in answers
            ]
            for name, answers in replies.items()
        }
    numbers: dict[str, int] = {}
    return {
        name: [[numbers.setdefault(word, len(numbers)) for word in reply.text.split()] for reply in answers]
        for name, answers in replies.items()
    }
