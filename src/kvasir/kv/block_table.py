"""Where a sequence's tokens are: one table per (sequence, group), position // block_size -> block."""

from kvasir.kv.block import Block


class BlockTable:
    """Entries of ``dead`` are gone for good (no query can see them); the rest are blocks.

    entry:   0 .. dead.start-1   dead.start .. dead.stop-1   dead.stop .. len-1
            [ blocks: sinks ...][ None ....................][ blocks .........]
    """

    __slots__ = ("blocks", "dead")

    def __init__(self) -> None:
        self.blocks: list[Block | None] = []
        self.dead = range(0)

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def num_live(self) -> int:
        return len(self.blocks) - len(self.dead)

    def live_blocks(self) -> list[Block]:
        return [block for block in self.blocks if block is not None]

    def block_ids(self, start: int = 0) -> tuple[int, ...]:
        """Physical numbers from entry ``start`` on; -1 for dead entries."""
        return tuple(-1 if block is None else block.block_id for block in self.blocks[start:])

    def bury(self, dead: range) -> list[Block]:
        """Make ``dead`` (which only ever grows at its end) the table's own; the blocks it takes out, oldest first."""
        stop = min(dead.stop, len(self.blocks))
        taken: list[Block] = []
        for i in range(max(dead.start, self.dead.stop), stop):
            block = self.blocks[i]
            if block is not None:
                taken.append(block)
                self.blocks[i] = None
        if stop > max(dead.start, self.dead.stop):
            self.dead = range(dead.start, stop)
        return taken
