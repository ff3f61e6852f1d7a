"""KL divergence per token from the reference's distribution, teacher-forced: the measure that sees most, soonest."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from kvasir.claims.result_file import Better
from kvasir.lab.document import Scores
from kvasir.lab.estimate import exact, mean_of
from kvasir.lab.figures import Curve, MeasureResult, Metric, SettingFigures
from kvasir.lab.lab import Lab
from kvasir.lab.measure import Size
from kvasir.lab.positions import bucket_name, filled_buckets
from kvasir.lab.reading import ReadingPlan

_METRICS = (
    Metric(key="mean", label="mean KL", unit="nats/token", is_damage=True, is_headline=True),
    Metric(key="decoded", label="mean KL, decoded tokens", unit="nats/token", is_damage=True),
    Metric(key="median", label="median KL", unit="nats/token"),
    Metric(key="p99", label="99 % KL", unit="nats/token"),
    Metric(key="max", label="largest KL", unit="nats/token"),
    Metric(key="top1", label="same likeliest token", unit="share", better=Better.HIGHER, is_headline=True),
    Metric(key="rms_dp", label="RMS change of the true token's probability", unit="share"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KLDivergence:
    """KL(reference || setting) over the whole vocabulary at every position of real text, in nats.

    Needs thousands of times fewer tokens than perplexity to see the same damage, and cannot be fooled by errors that
    happen to raise the true token's probability.  Tokens at each document's end are decoded one by one, so that damage
    that only decoding does is seen too.
    """

    name: ClassVar[str] = "kl"
    title: ClassVar[str] = "KL divergence"
    needs_scores: ClassVar[bool] = True

    plan: ReadingPlan

    @classmethod
    def sized(cls, size: Size, context: int) -> Self:
        return cls(plan=ReadingPlan.sized(size, context))

    def run(self, lab: Lab) -> MeasureResult:
        comparison = lab.compare(self.plan.documents(lab))
        truth = comparison.by_subject[comparison.reference]
        edges = filled_buckets([scores.indices for scores in truth])
        settings = {name: _figures(scores, truth, edges) for name, scores in comparison.by_subject.items()}
        curve = Curve(
            title="KL divergence by position",
            x_label="position in the context, tokens",
            y_label="nats/token",
            x=tuple((start + end) / 2 for start, end in edges),
            lines={
                name: tuple(task["mean"].value for task in figures.tasks.values())
                for name, figures in settings.items()
                if name != comparison.reference
            },
        )
        return MeasureResult(
            name=self.name,
            title=self.title,
            metrics=_METRICS,
            settings=settings,
            curves=(curve,),
            notes=(f"Texts: {lab.texts.description}.",),
        )


def _figures(documents: list[Scores], truth: list[Scores], edges: list[tuple[int, int]]) -> SettingFigures:
    kl = [scores.kl for scores in documents]
    everything = np.concatenate(kl)
    num = len(everything)
    squares = [(np.exp(-ours.nll) - np.exp(-theirs.nll)) ** 2 for ours, theirs in zip(documents, truth, strict=True)]
    overall = {
        "mean": mean_of(kl),
        "decoded": mean_of([scores.kl[scores.is_decoded] for scores in documents]),
        "median": exact(float(np.median(everything)), num),
        "p99": exact(float(np.quantile(everything, 0.99)), num),
        "max": exact(float(everything.max()), num),
        "top1": mean_of([scores.is_same_best.astype(np.float64) for scores in documents]),
        "rms_dp": mean_of(squares).map(math.sqrt),
    }
    tasks = {
        bucket_name(edge): {"mean": mean_of([scores.kl[scores.between(*edge)] for scores in documents])}
        for edge in edges
    }
    return SettingFigures(overall=overall, tasks=tasks)
