"""A measure for `kvasir quality --plugin`: multi-key needles alone, at three lengths up to the whole context."""

from dataclasses import dataclass
from typing import ClassVar, Self

from kvasir.lab.figures import MeasureResult
from kvasir.lab.lab import ANSWER_TOKENS, Lab
from kvasir.lab.measure import Size
from kvasir.lab.measures.ruler import TASKS
from kvasir.lab.retrieval import METRICS, Retrieval
from kvasir.lab.tasks.haystack import spread

_TASK = "multi-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class LongKeys:
    """One key of many is asked for, as in RULER; more samples of it than the whole suite has room for."""

    name: ClassVar[str] = "multi_key"
    title: ClassVar[str] = "Multi-key"
    needs_scores: ClassVar[bool] = False

    lengths: tuple[int, ...]
    num_samples: int

    @classmethod
    def sized(cls, size: Size, context: int) -> Self:
        longest = context - ANSWER_TOKENS
        if size is Size.QUICK:
            return cls(lengths=(longest,), num_samples=2)
        return cls(lengths=(longest // 4, longest // 2, longest), num_samples=5)

    def run(self, lab: Lab) -> MeasureResult:
        asked = [
            (length, depth, 211 * number + length)
            for length in self.lengths
            for number, depth in enumerate(spread(self.num_samples))
        ]
        retrieval = Retrieval(lab, [TASKS[_TASK](lab, *one) for one in asked])
        groups = {
            f"{length} tokens": [i for i, (own, _, _) in enumerate(asked) if own == length] for length in self.lengths
        }
        return MeasureResult(name=self.name, title=self.title, metrics=METRICS, settings=retrieval.figures(groups))
