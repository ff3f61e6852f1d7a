"""From a plan to a finished run: open the lab, run the measures in turn, judge."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvasir.core.errors import ConfigError
from kvasir.core.progress import Progress, no_progress
from kvasir.lab.gate import Limit, judge
from kvasir.lab.lab import Lab
from kvasir.lab.opening import LabPlan, open_lab
from kvasir.lab.registry import MeasureRegistry
from kvasir.lab.report import QualityRun
from kvasir.lab.server_subject import ServerSubject
from kvasir.lab.subject import LocalSubject


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPlan:
    """``measures``: names in ``registry``, () for all.  ``limits``: see ``gate.make_limits``."""

    lab: LabPlan
    measures: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    registry: MeasureRegistry = field(default_factory=MeasureRegistry)

    def __post_init__(self) -> None:
        for name in self.measures:
            self.registry.find(name)
        for limit in self.limits:
            if self.measures and limit.measure not in self.measures:
                raise ConfigError(f"{limit.option} needs the measure {limit.measure!r}; add it to --measures.")


def run_quality(plan: QualityPlan, progress: Progress = no_progress) -> QualityRun:
    """Raises what opening a lab raises, and what a measure refuses."""
    started_s = time.monotonic()
    with open_lab(plan.lab, progress) as lab:
        results, skipped = [], []
        for name in plan.measures or plan.registry.names:
            measure = plan.registry.find(name)
            if measure.needs_scores and not lab.can_score:
                skipped.append(name)
                continue
            results.append(lab.run(measure.sized(plan.lab.size, lab.context)))
        judged = _judged(plan.lab, lab)
        return QualityRun(
            model=_model_name(lab),
            size=plan.lab.size,
            context=lab.context,
            texts=lab.texts.description,
            reference=lab.reference.name,
            floor=lab.floor.name,
            order=lab.order,
            nudged=None if lab.nudged is None else lab.nudged.name,
            judged=judged,
            facts={s.name: s.facts() for s in (*lab.subjects, lab.nudged) if isinstance(s, LocalSubject)},
            servers={s.name: s.base_url for s in lab.subjects if isinstance(s, ServerSubject)},
            results=tuple(results),
            skipped=tuple(skipped),
            gate=judge(plan.limits, results, judged),
            duration_s=round(time.monotonic() - started_s, 1),
        )


def _judged(plan: LabPlan, lab: Lab) -> tuple[str, ...]:
    """The settings of the plan, in its order; of servers alone the first is the reference, and is judged too."""
    there: Sequence[str] = [subject.name for subject in lab.subjects]
    return tuple(setting.name for setting in plan.settings if setting.name in there)


def _model_name(lab: Lab) -> str:
    reference = lab.reference
    if isinstance(reference, LocalSubject):
        return reference.engine.folder.name
    return reference.model if isinstance(reference, ServerSubject) else reference.name
