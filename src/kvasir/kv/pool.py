"""The blocks of one group: made once, counted by reference, reused in eviction order."""

from collections.abc import Callable

from kvasir.core.errors import InvariantViolation
from kvasir.kv.block import Block
from kvasir.kv.free_list import FreeList


class BlockPool:
    """All blocks of one group.

    A block is *used* (referenced by block tables), *cached* (unreferenced, content still findable by its key) or *free*
    (unreferenced, content forgotten).  ``num_free + num_cached + num_used == num_blocks`` always.
    ``on_evict(block)`` is called just before a cached block is reused or forgotten.  ``free_list`` decides the order of
    eviction: least recently used, unless another (empty) one is given.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[Block], None], free_list: FreeList | None = None) -> None:
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.num_blocks = num_blocks
        self.num_cached = 0
        self._on_evict = on_evict
        self.free_list = FreeList() if free_list is None else free_list
        for block in self.blocks:
            self.free_list.append(block)

    @property
    def num_available(self) -> int:
        """Blocks that ``allocate`` could hand out: free and cached."""
        return self.free_list.num_blocks

    @property
    def num_free(self) -> int:
        return self.free_list.num_blocks - self.num_cached

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.free_list.num_blocks

    def allocate(self) -> Block:
        """A block with one reference and no key, evicting the first cached one when nothing is free.

        The caller has checked ``num_available``; an empty pool raises ``InvariantViolation``."""
        block = self.free_list.pop_first()
        if block.key is not None:
            self.forget(block)
        block.ref_count = 1
        return block

    def take(self, block_id: int) -> Block:
        """Allocate this very block (contiguous allocation).  Raises ``InvariantViolation`` when it is in use."""
        block = self.blocks[block_id]
        if block.ref_count:
            raise InvariantViolation(f"{block!r} was taken while in use")
        self.free_list.remove(block)
        if block.key is not None:
            self.forget(block)
        block.ref_count = 1
        return block

    def acquire(self, block: Block) -> None:
        """One more reference to ``block``, which is used or cached."""
        if block.ref_count == 0:
            self.free_list.remove(block)
            if block.key is not None:
                self.num_cached -= 1
        block.ref_count += 1

    def release(self, block: Block) -> None:
        """One reference less.  At zero a keyed block becomes cached and is reused last, any other is reused first."""
        if block.ref_count <= 0:
            raise InvariantViolation(f"{block!r} was released more often than acquired")
        block.ref_count -= 1
        if block.ref_count:
            return
        if block.key is not None:
            self.free_list.append(block)
            self.num_cached += 1
        else:
            self.free_list.prepend(block)

    def set_key(self, block: Block, key: bytes) -> None:
        """Make a used block findable.  A key is set once; a second one raises ``InvariantViolation``."""
        if block.key is not None or block.ref_count == 0:
            raise InvariantViolation(f"{block!r} cannot be given a key")
        block.key = key
        self.free_list.on_key(block)

    def forget(self, block: Block) -> None:
        """Drop the block's key, so that its content can no longer be found."""
        self._on_evict(block)
        if block.ref_count == 0:
            self.num_cached -= 1
        block.key = None
