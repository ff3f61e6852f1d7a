"""Where a sequence's tokens are: one table per (sequence, group), position // block_size -> block."""

from kvasir.kv.block import Block


class BlockTable:
    """Entries [0, num_dead) are gone for good (no query can see them); the rest are blocks.

    entry:   0 .. num_dead-1   num_dead .. len-1
            [ None ......... ][ blocks ........ ]
    """

    __slots__ = ("blocks", "num_dead")

    def __init__(self) -> None:
        self.blocks: list[Block | None] = []
        self.num_dead = 0

    def __len__(self) -> int:
        return len(self.blocks)

    def live_blocks(self) -> list[Block]:
        return [block for block in self.blocks if block is not None]

    def block_ids(self, start: int = 0) -> tuple[int, ...]:
        """Physical numbers from entry ``start`` on; -1 for dead entries."""
        return tuple(-1 if block is None else block.block_id for block in self.blocks[start:])
