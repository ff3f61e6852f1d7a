"""RULER-style tasks: needles of six kinds, variable tracking, common words; the first break long before the last."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

from kvasir.lab.figures import MeasureResult
from kvasir.lab.lab import ANSWER_TOKENS, Lab
from kvasir.lab.measure import Size
from kvasir.lab.retrieval import METRICS, Retrieval
from kvasir.lab.tasks.counting import common_words
from kvasir.lab.tasks.haystack import spread
from kvasir.lab.tasks.needles import multi_key, multi_query, multi_value, needle_haystack, single
from kvasir.lab.tasks.sample import Sample
from kvasir.lab.tasks.tracing import variable_tracking

Generator = Callable[[Lab, int, float, int], Sample]
"""(lab, length, depth, seed) -> a sample."""

TASKS: dict[str, Generator] = {
    "single needle, noise": lambda lab, n, depth, seed: single(n, depth, seed, lab.count_tokens),
    "single needle, book": lambda lab, n, depth, seed: single(
        n, depth, seed, lab.count_tokens, lab.texts.sentences(seed)
    ),
    "multi-key": lambda lab, n, depth, seed: multi_key(n, depth, seed, lab.count_tokens, lab.texts.sentences(seed)),
    "haystack of needles": lambda lab, n, depth, seed: needle_haystack(n, depth, seed, lab.count_tokens),
    "multi-value": lambda lab, n, _, seed: multi_value(n, seed, lab.count_tokens, lab.texts.sentences(seed)),
    "multi-query": lambda lab, n, _, seed: multi_query(n, seed, lab.count_tokens, lab.texts.sentences(seed)),
    "variable tracking": lambda lab, n, _, seed: variable_tracking(n, seed, lab.count_tokens),
    "common words": lambda lab, n, _, seed: common_words(n, seed, lab.count_tokens),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruler:
    """Mean share of the right strings in the reply, as RULER scores it, and the loss of the right answer.

    A small model may find nothing in the hard tasks; its answer loss still tells whether a setting made it worse.
    """

    name: ClassVar[str] = "ruler"
    title: ClassVar[str] = "RULER-style"
    needs_scores: ClassVar[bool] = False

    lengths: tuple[int, ...]
    num_samples: int
    tasks: tuple[str, ...] = tuple(TASKS)

    @classmethod
    def sized(cls, size: Size, context: int) -> Self:
        longest = context - ANSWER_TOKENS
        if size is Size.QUICK:
            return cls(lengths=(min(longest, 512),), num_samples=1)
        return cls(lengths=(longest // 4, longest // 2), num_samples=3)

    def run(self, lab: Lab) -> MeasureResult:
        depths = spread(self.num_samples)
        samples = [
            TASKS[task](lab, length, depth, 101 * number + length)
            for task in self.tasks
            for length in self.lengths
            for number, depth in enumerate(depths)
        ]
        retrieval = Retrieval(lab, samples)
        return MeasureResult(
            name=self.name,
            title=self.title,
            metrics=METRICS,
            settings=retrieval.figures(retrieval.by_task()),
        )
