"""Perplexity on running text, and its paired difference by position: what most tables print, with its uncertainty."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from kvasir.lab.document import Scores
from kvasir.lab.estimate import F64, Estimate, mean_of
from kvasir.lab.figures import Curve, MeasureResult, Metric, SettingFigures
from kvasir.lab.lab import Lab
from kvasir.lab.measure import Size
from kvasir.lab.positions import bucket_name, filled_buckets
from kvasir.lab.reading import ReadingPlan

_LOSS = Metric(key="loss", label="rise of the NLL", unit="nats/token", is_damage=True, is_headline=True)
_METRICS = (Metric(key="perplexity", label="perplexity"), _LOSS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """exp of the mean NLL of the true tokens, and ln(PPL / PPL of the reference) paired token by token.

    It can stand still, or fall, while the distribution around the true token breaks: never evidence on its own.
    """

    name: ClassVar[str] = "perplexity"
    title: ClassVar[str] = "Perplexity"
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
            title="Rise of the NLL by position",
            x_label="position in the context, tokens",
            y_label="nats/token",
            x=tuple((start + end) / 2 for start, end in edges),
            lines={
                name: tuple(task["loss"].value for task in figures.tasks.values())
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
    nll = [scores.nll for scores in documents]
    rise = [ours.nll - theirs.nll for ours, theirs in zip(documents, truth, strict=True)]
    masks = {edge: [scores.between(*edge) for scores in documents] for edge in edges}
    tasks = {
        bucket_name(edge): _pair(
            [values[mask] for values, mask in zip(nll, masks[edge], strict=True)],
            [values[mask] for values, mask in zip(rise, masks[edge], strict=True)],
        )
        for edge in edges
    }
    return SettingFigures(overall=_pair(nll, rise), tasks=tasks)


def _pair(nll: list[F64], rise: list[F64]) -> dict[str, Estimate]:
    return {"perplexity": mean_of(nll).map(math.exp), "loss": mean_of(rise)}
