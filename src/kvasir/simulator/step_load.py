"""How much one step is, in the few numbers that its cost depends on; read off the real ``StepPlan``."""

from collections.abc import Sequence
from typing import NamedTuple

from kvasir.core.step import StepPlan
from kvasir.kv.retention import FULL, Retention
from kvasir.models.cost import RowCost, num_visible_pairs


class StepLoad(NamedTuple):
    """``num_sequences`` rows compute ``num_tokens`` tokens and draw ``num_samples``; ``num_decodes`` rows are of a
    single token.

    ``pairs[g]`` counts (new token, visible key) pairs over all rows, ``reads[g]`` the keys that are read when each row
    reads what it sees once; g runs over the meter's retention rules.
    """

    num_tokens: int
    num_sequences: int
    num_samples: int
    num_decodes: int
    pairs: tuple[int, ...]
    reads: tuple[int, ...]


class StepMeter:
    """Measures plans; ``retentions`` are the distinct rules of the model's layers."""

    def __init__(self, retentions: Sequence[Retention] = (FULL,)) -> None:
        self.retentions = tuple(retentions)
        self._is_full = self.retentions == (FULL,)

    def measure(self, plan: StepPlan) -> StepLoad:
        """One pass over the rows: this runs once a simulated token."""
        if not self._is_full:
            return self._measure_windows(plan)
        num_tokens = num_samples = num_decodes = num_pairs = num_reads = 0
        for _, position, token_ids, _, sample_for, num_evicted in plan.rows:
            num_new = len(token_ids)
            position -= num_evicted
            end = position + num_new
            num_tokens += num_new
            num_reads += end
            if num_new == 1:
                num_decodes += 1
                num_pairs += end
            else:
                num_pairs += num_new * position + num_new * (num_new + 1) // 2
            num_samples += len(sample_for)
        return StepLoad(num_tokens, len(plan.rows), num_samples, num_decodes, (num_pairs,), (num_reads,))

    def _measure_windows(self, plan: StepPlan) -> StepLoad:
        rows = [RowCost(len(row.token_ids), row.position - row.num_evicted) for row in plan.rows]
        return StepLoad(
            sum(row.num_new for row in rows),
            len(rows),
            sum(len(row.sample_for) for row in plan.rows),
            sum(row.num_new == 1 for row in rows),
            tuple(sum(num_visible_pairs(rule, row) for row in rows) for rule in self.retentions),
            tuple(
                sum(rule.num_seen(row.num_computed, row.num_computed + row.num_new) for row in rows)
                for rule in self.retentions
            ),
        )
