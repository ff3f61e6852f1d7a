"""Which cached block goes first: least recently used, first in first out, or by a look into the future."""

from collections.abc import Callable
from enum import Enum

from kvasir.kv.block import Block
from kvasir.kv.free_list import FreeList
from kvasir.kv.ranked_free_list import FifoRanking, RankedFreeList


class EvictionPolicy(Enum):
    LRU = "lru"
    """What the engine does."""
    FIFO = "fifo"
    BELADY = "belady"
    """The block whose next use is farthest: no policy can hit more.  Needs the future, so it is a yardstick only."""


_NEVER = 1 << 62


class FutureUses:
    """When each block will be wanted again, from the whole trace: the ranking of Belady's algorithm (1966).

    Requests are numbered in trace order.  The farthest next use goes first; among blocks wanted next by the same
    request the deepest in its prompt goes first, because a hit is a run of blocks from the start.
    """

    def __init__(self) -> None:
        self._uses: dict[bytes, list[int]] = {}
        """Key -> numbers of the requests that want it, the last one first; those that came are dropped lazily."""
        self._depths: dict[bytes, int] = {}
        self._has_come: list[bool] = []

    def expect(self, keys: list[bytes]) -> None:
        """The next request of the trace will want ``keys``; called for all of them, in order, before ``freeze``."""
        number = len(self._has_come)
        self._has_come.append(False)
        for depth, key in enumerate(keys):
            uses = self._uses.get(key)
            if uses is None:
                self._uses[key] = [number]
                self._depths[key] = depth
            else:
                uses.append(number)

    def freeze(self) -> None:
        """The future is complete."""
        for uses in self._uses.values():
            uses.reverse()

    def come(self, number: int) -> None:
        """Request ``number`` has been served from the cache: it is no longer the future."""
        self._has_come[number] = True

    def on_key(self, block: Block) -> None:
        """Nothing: only the future matters."""

    def rank(self, block: Block) -> tuple[int, int]:
        if block.key is None or block.key not in self._uses:
            return (-_NEVER, 0)
        uses = self._uses[block.key]
        while uses and self._has_come[uses[-1]]:
            uses.pop()
        return (-(uses[-1] if uses else _NEVER), -self._depths[block.key])


def free_list_maker(policy: EvictionPolicy, future: FutureUses | None = None) -> Callable[[], FreeList]:
    """What makes each group's free list.  ``future`` is needed by BELADY, and by no other."""
    if policy is EvictionPolicy.BELADY:
        if future is None:
            raise ValueError("Belady's algorithm needs the future")
        return lambda: RankedFreeList(future)
    return _MAKERS[policy]


_MAKERS: dict[EvictionPolicy, Callable[[], FreeList]] = {
    EvictionPolicy.LRU: FreeList,
    EvictionPolicy.FIFO: lambda: RankedFreeList(FifoRanking()),
}
