"""Eviction in another order than least recently used, for comparing policies on recorded traffic."""

import heapq
from collections.abc import Iterator
from typing import Any, Protocol

from kvasir.core.errors import InvariantViolation
from kvasir.kv.block import Block
from kvasir.kv.free_list import FreeList


class Ranking(Protocol):
    """Says which of the cached blocks should go first."""

    def on_key(self, block: Block) -> None:
        """``block`` has just become findable."""
        ...

    def rank(self, block: Block) -> Any:
        """Comparable; the lowest is reused first.  Asked once, when ``block`` becomes unused."""
        ...


class FifoRanking:
    """First in, first out: the block that became findable first is reused first, however often it was hit."""

    def __init__(self) -> None:
        self._order: dict[int, int] = {}
        self._next = 0

    def on_key(self, block: Block) -> None:
        self._order[block.block_id] = self._next
        self._next += 1

    def rank(self, block: Block) -> int:
        return self._order[block.block_id]


class RankedFreeList(FreeList):
    """Cached blocks in a heap by rank; blocks that hold nothing stay in the plain list and are reused before them.

    Taking a block out of the middle leaves its heap entry behind, which is skipped when it comes up: all operations
    are O(log n) amortised.
    """

    __slots__ = ("_heap", "_ranking", "_serial_of", "_serials")

    def __init__(self, ranking: Ranking) -> None:
        super().__init__()
        self._ranking = ranking
        self._heap: list[tuple[Any, int, Block]] = []
        self._serial_of: dict[int, int] = {}
        """Block id -> serial of its valid heap entry."""
        self._serials = 0

    def __iter__(self) -> Iterator[Block]:
        yield from super().__iter__()
        yield from (block for _, serial, block in sorted(self._heap, key=_order) if self._is_valid(serial, block))

    def on_key(self, block: Block) -> None:
        self._ranking.on_key(block)

    def append(self, block: Block) -> None:
        if block.key is None:
            super().append(block)
            return
        if block.block_id in self._serial_of:
            raise InvariantViolation(f"{block!r} was freed twice")
        self._serials += 1
        self._serial_of[block.block_id] = self._serials
        heapq.heappush(self._heap, (self._ranking.rank(block), self._serials, block))
        self.num_blocks += 1

    def pop_first(self) -> Block:
        if self.num_blocks > len(self._serial_of):
            return super().pop_first()
        while self._heap:
            _, serial, block = heapq.heappop(self._heap)
            if self._is_valid(serial, block):
                self._drop(block)
                return block
        raise InvariantViolation("a block was taken from an empty free list")

    def remove(self, block: Block) -> None:
        if block.block_id in self._serial_of:
            self._drop(block)
        else:
            super().remove(block)

    def _drop(self, block: Block) -> None:
        del self._serial_of[block.block_id]
        self.num_blocks -= 1

    def _is_valid(self, serial: int, block: Block) -> bool:
        return self._serial_of.get(block.block_id) == serial


def _order(entry: tuple[Any, int, Block]) -> tuple[Any, int]:
    return entry[0], entry[1]
