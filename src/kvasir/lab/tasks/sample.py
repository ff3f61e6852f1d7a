"""One question whose answer is known, as every generator of tasks makes it."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """``prompt`` is the whole user turn.  ``answers`` are all strings a right reply contains.

    ``lead`` is how a reply begins when it comes to the point: the answers' log-probability is read after it.
    ``length``: nominal length of the prompt in tokens.  ``depth``: where in the haystack the first needle lies, 0 to 1.
    """

    task: str
    prompt: str
    answers: tuple[str, ...]
    lead: str
    length: int
    depth: float | None = None
    max_tokens: int = 48

    @property
    def expected(self) -> str:
        """The answers as a reply would list them."""
        *others, last = self.answers
        return f"{', '.join(others)} and {last}" if others else last


def score(reply: str, answers: tuple[str, ...]) -> float:
    """Share of ``answers`` that ``reply`` contains as whole words, whatever their case."""
    found = [re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", reply, re.IGNORECASE) for answer in answers]
    return sum(match is not None for match in found) / len(answers)
