"""Unused blocks in eviction order: an intrusive doubly linked list, every operation O(1)."""

from collections.abc import Iterator

from kvasir.core.errors import InvariantViolation
from kvasir.kv.block import Block


class FreeList:
    """The head is reused first.  A block is in the list exactly while its ``ref_count`` is 0."""

    __slots__ = ("_sentinel", "num_blocks")

    def __init__(self) -> None:
        # The sentinel closes the ring, so that no operation has an end case.
        self._sentinel = Block(-1)
        self._sentinel.previous = self._sentinel.next = self._sentinel
        self.num_blocks = 0

    def __len__(self) -> int:
        return self.num_blocks

    def __iter__(self) -> Iterator[Block]:
        """From first to be reused to last."""
        block = self._sentinel.next
        while block is not None and block is not self._sentinel:
            yield block
            block = block.next

    def append(self, block: Block) -> None:
        """Put ``block`` at the end: it will be reused last."""
        last = self._sentinel.previous
        assert last is not None
        self._link(last, block, self._sentinel)

    def on_key(self, block: Block) -> None:
        """``block`` has just become findable.  Nothing to this order, which goes by when blocks were last used."""

    def prepend(self, block: Block) -> None:
        """Put ``block`` at the head: it holds nothing worth keeping."""
        first = self._sentinel.next
        assert first is not None
        self._link(self._sentinel, block, first)

    def pop_first(self) -> Block:
        """Take the block to be reused first.  Raises ``InvariantViolation`` when the list is empty."""
        block = self._sentinel.next
        if block is None or block is self._sentinel:
            raise InvariantViolation("a block was taken from an empty free list")
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        previous, following = block.previous, block.next
        if previous is None or following is None:
            raise InvariantViolation(f"{block!r} was removed from a free list it is not in")
        previous.next = following
        following.previous = previous
        block.previous = block.next = None
        self.num_blocks -= 1

    def _link(self, previous: Block, block: Block, following: Block) -> None:
        if block.next is not None:
            raise InvariantViolation(f"{block!r} was freed twice")
        block.previous, block.next = previous, following
        previous.next = following.previous = block
        self.num_blocks += 1
