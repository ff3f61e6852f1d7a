"""Multi-turn: one long context, its questions in turn and in reverse, and an instruction that must last."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from kvasir.claims.result_file import Better
from kvasir.lab.chat import Chat
from kvasir.lab.estimate import Estimate, mean_of
from kvasir.lab.figures import MeasureResult, Metric, SettingFigures
from kvasir.lab.lab import ANSWER_TOKENS, Lab
from kvasir.lab.measure import Size
from kvasir.lab.tasks.haystack import haystack, spread
from kvasir.lab.tasks.passkey import digits
from kvasir.lab.tasks.sample import score

_CLOSING_WORD = "Amen"
_THINGS = ("the green box", "the old clock", "the west gate", "the small boat")
_ORDERS = ("in turn", "reversed")
_REPLY_TOKENS = 32
_WRAPPING_TOKENS = 24
"""What the template puts around a question and its answer."""

_METRICS = (
    Metric(key="recalled", label="facts recalled", unit="share", better=Better.HIGHER, is_headline=True),
    Metric(key="recalled_loss", label="facts lost", unit="share", is_damage=True),
    Metric(key="obeyed", label="instruction obeyed", unit="share", better=Better.HIGHER),
    Metric(key="obeyed_loss", label="obedience lost", unit="share", is_damage=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTurn:
    """Every conversation starts with an instruction ("end every answer with the word ...") and a text with four facts;
    one question a turn, with the subject's own replies in between.  Reads what a cache that was compressed for its
    first question cannot answer next, and what is forgotten as turns go by."""

    name: ClassVar[str] = "turns"
    title: ClassVar[str] = "Multi-turn"
    needs_scores: ClassVar[bool] = False

    num_tokens: int
    num_texts: int

    @classmethod
    def sized(cls, size: Size, context: int) -> Self:
        later = len(_THINGS) * (_REPLY_TOKENS + _WRAPPING_TOKENS)
        longest = max(64, context - ANSWER_TOKENS - later)
        return cls(
            num_tokens=min(longest, 600 if size is Size.QUICK else 2000), num_texts=2 if size is Size.QUICK else 4
        )

    def run(self, lab: Lab) -> MeasureResult:
        talks = [talk for seed in range(self.num_texts) for talk in self._talks(lab, seed)]
        outcomes = self._converse(lab, talks)
        truth = outcomes[lab.reference.name]
        groups = {order: [i for i, talk in enumerate(talks) if talk.order == order] for order in _ORDERS}
        everything = list(range(len(talks)))
        settings = {
            name: SettingFigures(
                overall=_figures(outcome, truth, everything),
                tasks={order: _figures(outcome, truth, numbers) for order, numbers in groups.items()},
            )
            for name, outcome in outcomes.items()
        }
        return MeasureResult(name=self.name, title=self.title, metrics=_METRICS, settings=settings)

    def _talks(self, lab: Lab, seed: int) -> list["_Talk"]:
        rng = random.Random(seed)
        facts = [(thing, digits(rng, 4)) for thing in _THINGS]
        needles = [
            (depth, f"The number of {thing} is {value}.")
            for depth, (thing, value) in zip(spread(len(facts), 0.1, 0.9), facts, strict=True)
        ]
        opening = (
            f"Important: end every one of your answers with the word {_CLOSING_WORD}.\n\n"
            "Read the text below; questions follow.\n\n"
        )
        room = self.num_tokens - lab.count_tokens(opening)
        text = haystack(lab.texts.sentences(seed), needles, room, lab.count_tokens)
        turns = [(f"What is the number of {thing}?", value) for thing, value in facts]
        return [
            _Talk(opening + text, turns, _ORDERS[0]),
            _Talk(opening + text, list(reversed(turns)), _ORDERS[1]),
        ]

    def _converse(self, lab: Lab, talks: Sequence["_Talk"]) -> dict[str, "_Outcome"]:
        """All talks side by side, turn by turn; every subject lives with its own replies."""
        first = [Chat(turns=(f"{talk.text}\n\n{talk.turns[0][0]}",), max_tokens=_REPLY_TOKENS) for talk in talks]
        chats: dict[str, Sequence[Chat]] = {subject.name: first for subject in lab.subjects}
        outcomes = {subject.name: _Outcome(len(talks)) for subject in lab.subjects}
        for turn in range(len(_THINGS)):
            replies = lab.ask_each(chats)
            for name, answers in replies.items():
                for i, (talk, reply) in enumerate(zip(talks, answers, strict=True)):
                    outcomes[name].recalled[i].append(score(reply.text, (talk.turns[turn][1],)))
                    outcomes[name].obeyed[i].append(score(reply.text, (_CLOSING_WORD,)))
            if turn + 1 < len(_THINGS):
                chats = {
                    name: [
                        chat.followed_by(reply.text, talk.turns[turn + 1][0])
                        for chat, reply, talk in zip(chats[name], replies[name], talks, strict=True)
                    ]
                    for name in chats
                }
        return outcomes


@dataclass(frozen=True, slots=True)
class _Talk:
    text: str
    turns: list[tuple[str, str]]
    order: str


class _Outcome:
    """By talk, one entry a turn."""

    def __init__(self, num_talks: int) -> None:
        self.recalled: list[list[float]] = [[] for _ in range(num_talks)]
        self.obeyed: list[list[float]] = [[] for _ in range(num_talks)]


def _figures(ours: _Outcome, theirs: _Outcome, numbers: Sequence[int]) -> dict[str, Estimate]:
    figures = {}
    for key, mine, reference in (
        ("recalled", ours.recalled, theirs.recalled),
        ("obeyed", ours.obeyed, theirs.obeyed),
    ):
        own = [np.array(mine[i]) for i in numbers]
        figures[key] = mean_of(own)
        figures[f"{key}_loss"] = mean_of([np.array(reference[i]) - np.array(mine[i]) for i in numbers])
    return figures
