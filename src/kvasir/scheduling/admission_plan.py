"""Which waiting sequences may start in this step: seats, blocks, and twins worth waiting for."""

from collections.abc import Iterable
from typing import NamedTuple

from kvasir.core.sequence import Sequence
from kvasir.kv.lookup import PrefixHit
from kvasir.kv.manager import KVManager


class Candidate(NamedTuple):
    """A waiting sequence with a seat and blocks in view; ``num_seats`` includes siblings not yet seated."""

    sequence: Sequence
    hit: PrefixHit
    num_seats: int

    @property
    def num_remaining(self) -> int:
        return self.sequence.num_tokens - self.hit.num_tokens


class AdmissionPlan(NamedTuple):
    """``is_blocked``: somebody could not start for want of seats or blocks."""

    candidates: list[Candidate]
    is_blocked: bool


def plan_admissions(
    waiting: Iterable[tuple[Sequence, int]], running: Iterable[Sequence], manager: KVManager, num_seats: int
) -> AdmissionPlan:
    """Walk ``waiting`` (sequence, seats it needs) in order of service.  Changes nothing.

    A sequence starts only if the blocks to finish its prompt are there beside what running prefills still need:
    prefills that evict each other would never end.  The first that does not fit stops the walk, so that nobody slips
    past it for ever; with nothing running it is let in regardless, since an empty pool holds any admitted request.
    A sequence whose next block is being computed by a twin is skipped: it will find that block in the cache.
    """
    available = list(manager.num_available())
    is_idle = True
    for sequence in running:
        is_idle = False
        if not manager.is_ready(sequence):
            _subtract(available, manager.blocks_to_finish(sequence))
    candidates: list[Candidate] = []
    for sequence, seats_needed in waiting:
        if seats_needed > num_seats:
            return AdmissionPlan(candidates, is_blocked=True)
        hit = manager.lookup(sequence)
        if manager.is_being_computed(sequence, hit):
            continue
        needs = manager.blocks_to_finish(sequence, hit)
        fits = all(need <= left for need, left in zip(needs, available, strict=True))
        if not fits and not (is_idle and not candidates):
            return AdmissionPlan(candidates, is_blocked=True)
        _subtract(available, needs)
        num_seats -= seats_needed
        candidates.append(Candidate(sequence, hit, seats_needed))
    return AdmissionPlan(candidates, is_blocked=False)


def _subtract(available: list[int], needs: tuple[int, ...]) -> None:
    for g, need in enumerate(needs):
        available[g] -= need
