"""How many sequences one instance holds: at worst, at the stated lengths, with a shared prefix, and without paging."""

from dataclasses import dataclass

from kvasir.planner.instance import Instance
from kvasir.planner.lengths import LengthSample, sample_lengths
from kvasir.planner.request import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Sequences at once, with fractions.

    ``worst_case``: all at the maximum context.  ``contiguous``: every sequence reserves the maximum context, however
    short it is, which is what allocation without paging does.  ``expected``: at the stated lengths, 99 times of 100
    without running out, each sequence with its own copy of the prefix.  ``shared``: the prefix held once.
    ``planned``: the figure to plan with, after safety and limits of slots.  ``at_low`` is ``shared`` with the most
    overhead that logs show.
    """

    worst_case: float
    contiguous: float
    expected: float
    shared: float
    at_low: float
    planned: int
    safety: float

    @property
    def paging_gain(self) -> float:
        return self.expected / self.contiguous if self.contiguous else 0.0


def lengths_of(request: PlanRequest) -> LengthSample:
    load = request.load
    return sample_lengths(load.prompts, load.outputs, request.settings.max_model_len, load.shared_prefix)


def capacity_of(request: PlanRequest, instance: Instance, sample: LengthSample) -> Capacity:
    pool, prefix = instance.pool, request.load.shared_prefix
    worst = pool.num_sequences(request.settings.max_model_len)
    expected = pool.num_expected(sample)
    shared = pool.num_expected(sample, prefix) if prefix else expected
    low = instance.pool_low
    at_low = 0.0 if low is None else low.num_expected(sample, prefix)
    safety = request.effective_safety
    limit = request.max_num_seqs
    planned = int(shared * safety + 1e-9)
    return Capacity(
        worst_case=worst,
        contiguous=worst,
        expected=expected,
        shared=shared,
        at_low=at_low,
        planned=planned if limit is None else min(planned, limit),
        safety=safety,
    )
