"""Subjects whose answers are planted, for measures that ask: what they should find is then known beforehand."""

import re
from collections.abc import Callable, Sequence

from kvasir.core.progress import Progress, no_progress
from kvasir.lab.chat import Chat, Reply
from kvasir.lab.lab import Lab
from kvasir.lab.measure import Size
from kvasir.lab.texts import NoTexts


class Planted:
    """Answers with ``answer(chat)``."""

    def __init__(self, name: str, answer: Callable[[Chat], str]) -> None:
        self.name = name
        self._answer = answer
        self.asked: list[Chat] = []

    def ask(self, chats: Sequence[Chat], progress: Progress = no_progress) -> list[Reply]:
        self.asked += chats
        return [Reply(text=self._answer(chat), token_ids=None, has_ended=True) for chat in chats]

    def close(self) -> None:
        """Holds nothing."""


def planted_lab(context: int = 4000, **answers: Callable[[Chat], str]) -> Lab:
    """The first answerer is the reference (and the floor), the others are settings."""
    (reference, first), *others = answers.items()
    return Lab(
        reference=Planted(reference, first),
        floor=Planted(f"{reference} again", first),
        settings=[Planted(name, answer) for name, answer in others],
        texts=NoTexts(),
        size=Size.QUICK,
        context=context,
    )


def sees(last: int | None = None) -> Callable[[Chat], str]:
    """Repeats every number in the last ``last`` words of the conversation (None: in all of it)."""

    def answer(chat: Chat) -> str:
        words = " ".join(chat.turns).split()
        return " ".join(re.findall(r"\d+", " ".join(words[-last:] if last else words)))

    return answer
