"""Rounds to figures: medians, ratios within turns, agreement of tokens."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvasir.claims.result_file import Better
from side_by_side.records import Record


def rounds_of(records: Iterable[Record], workload: str, contender: str) -> list[Record]:
    return [record for record in records if (record.workload, record.contender) == (workload, contender)]


def scalar(record: Record, figure: str) -> float:
    value = record.figures[figure]
    assert isinstance(value, float | int)
    return float(value)


def median_of(rounds: Sequence[Record], figure: str) -> float:
    return statistics.median(scalar(record, figure) for record in rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Ours over the best peer's: the median of ``per_turn``, one entry for each turn that both took part in."""

    value: float
    best_peer: str
    per_turn: list[float]


def ratio_to_best(
    records: Sequence[Record], *, workload: str, figure: str, ours: str, peers: Sequence[str], better: Better
) -> Ratio | None:
    """The best peer is the one with the best median.  None: somebody has no rounds, or no turn is shared."""
    own = rounds_of(records, workload, ours)
    medians = {peer: median_of(rounds, figure) for peer in peers if (rounds := rounds_of(records, workload, peer))}
    if not own or not medians:
        return None
    best = (min if better is Better.LOWER else max)(medians, key=lambda peer: medians[peer])
    theirs = {record.turn: scalar(record, figure) for record in rounds_of(records, workload, best)}
    per_turn = [scalar(record, figure) / theirs[record.turn] for record in own if record.turn in theirs]
    if not per_turn:
        return None
    return Ratio(value=statistics.median(per_turn), best_peer=best, per_turn=per_turn)


def agreement(rounds: Sequence[Record], reference: Sequence[Record]) -> float | None:
    """Share of greedy tokens up to the first difference, over all outputs of turns that both took part in."""
    expected = {record.turn: record.tokens for record in reference}
    pairs = [
        pair
        for record in rounds
        if record.turn in expected
        for pair in zip(record.tokens, expected[record.turn], strict=True)
    ]
    if not pairs:
        return None
    return sum(_num_alike(*pair) for pair in pairs) / sum(len(theirs) for _, theirs in pairs)


def _num_alike(ours: Sequence[int], theirs: Sequence[int]) -> int:
    for position, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return position
    return min(len(ours), len(theirs))
