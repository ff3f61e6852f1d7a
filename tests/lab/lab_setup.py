"""Labs around hand-made models: one thread, short contexts, known settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvasir.lab.figures import MeasureResult
from kvasir.lab.lab import Lab
from kvasir.lab.measure import Measure, Size
from kvasir.lab.opening import DEFAULT_REFERENCE, LabPlan, open_lab
from kvasir.lab.setting import Setting

SIXTEEN_BITS = {"kv_cache_dtype": "bf16"}


def lab_plan(
    model: Path,
    settings: Sequence[Setting],
    *,
    context: int = 700,
    reference: Mapping[str, str] | None = None,
    **flags: str,
) -> LabPlan:
    """fp32 weights unless told otherwise: what the hand-made models answer is then known to many digits."""
    shared = {"model": str(model), "threads": "1", "weight_dtype": "fp32", "max_model_len": str(context)} | flags
    return LabPlan(settings=tuple(settings), shared=shared, reference=reference or DEFAULT_REFERENCE, size=Size.QUICK)


def small_lab(model: Path, settings: Sequence[Setting], **options: Any) -> Lab:
    return open_lab(lab_plan(model, settings, **options))


def measured(lab: Lab, measure: Measure) -> MeasureResult:
    result = lab.run(measure)
    assert set(result.settings) <= set(lab.order) and {subject.name for subject in lab.subjects} <= set(result.settings)
    return result
