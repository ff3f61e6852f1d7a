"""Chooses one option for every head under a budget of bytes: greedy on the convex hulls of (bytes, damage)."""

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kvasir.core.errors import ConfigError
from kvasir.kv.head_group import Head

MOST_GROUPS = 4
"""Every group has a block table of its own per sequence: few groups keep the bookkeeping cheap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``option_of`` every head, as an index into the costs.  ``num_bytes`` and ``damage`` are sums over all heads."""

    option_of: dict[Head, int]
    num_bytes: float
    damage: float


def choose_options(
    costs: Sequence[float],
    damage: Mapping[Head, Sequence[float]],
    protected: Collection[Head],
    allowed_when_protected: Collection[int],
    budget_bytes: float,
) -> Choice:
    """``costs[o]`` bytes of option o for one head; ``damage[head][o]``.  ``protected`` heads take only options of
    ``allowed_when_protected``.  At most ``MOST_GROUPS`` options are used.

    Every head starts with its cheapest option.  Then the step along a head's lower convex hull that saves most damage
    a byte is taken, until the next does not fit; smaller steps are still tried.  Ties go to the lower layer and head.
    Raises ``ConfigError`` with the least possible budget when not even the cheapest fits.
    """
    protected, allowed = set(protected), set(allowed_when_protected)
    options = set(range(len(costs)))
    while True:
        choice = _greedy(costs, damage, protected, allowed & options, options, budget_bytes)
        used = Counter(choice.option_of.values())
        if len(used) <= MOST_GROUPS:
            return choice
        # The rarest goes, and its heads choose again; an option of protected heads stays while it is their last.
        rarest = sorted(used, key=lambda option: (used[option], option))
        options.discard(next(option for option in rarest if not protected or allowed & options != {option}))


def _greedy(
    costs: Sequence[float],
    damage: Mapping[Head, Sequence[float]],
    protected: set[Head],
    allowed: set[int],
    options: set[int],
    budget_bytes: float,
) -> Choice:
    hulls = {
        head: lower_hull([(costs[o], damage[head][o], o) for o in sorted(allowed if head in protected else options)])
        for head in sorted(damage)
    }
    at = dict.fromkeys(hulls, 0)
    spent = sum(hull[0][0] for hull in hulls.values())
    if spent > budget_bytes:
        raise ConfigError(
            f"The budget of {budget_bytes:.0f} bytes is below the {spent:.0f} bytes of the cheapest choice with "
            f"{len(protected)} retrieval heads in full; give a larger --budget, or --formats with fewer bits."
        )
    queue = [(_slope(hull, 0), head) for head, hull in hulls.items() if len(hull) > 1]
    heapq.heapify(queue)
    while queue:
        _, head = heapq.heappop(queue)
        hull, step = hulls[head], at[head]
        extra = hull[step + 1][0] - hull[step][0]
        if spent + extra > budget_bytes:
            continue
        spent += extra
        at[head] = step + 1
        if step + 2 < len(hull):
            heapq.heappush(queue, (_slope(hull, step + 1), head))
    return Choice(
        option_of={head: hull[at[head]][2] for head, hull in hulls.items()},
        num_bytes=spent,
        damage=sum(hull[at[head]][1] for head, hull in hulls.items()),
    )


Point = tuple[float, float, int]
"""(bytes, damage, option)"""


def lower_hull(points: Sequence[Point]) -> list[Point]:
    """The points no mixture of others beats: bytes rise, damage falls, and each byte saves less than the one before."""
    hull: list[Point] = []
    for point in sorted(points):
        if hull and point[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and _saved(hull[-1], point) >= _saved(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    return hull


def _slope(hull: Sequence[Point], step: int) -> float:
    """Negative, so that a heap gives the best first."""
    return -_saved(hull[step], hull[step + 1])


def _saved(cheap: Point, dear: Point) -> float:
    """Damage saved a byte; points of equal bytes cannot both be on a hull, as the second has more damage."""
    return (cheap[1] - dear[1]) / (dear[0] - cheap[0])
