"""A block: one unit of KV room in one group, known by its number."""


class Block:
    """State of one physical block.  ``key`` is set while the block's content can be found by prefix; ``previous`` and
    ``next`` are owned by the free list (both None while the block is in use)."""

    __slots__ = ("block_id", "key", "next", "previous", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.key: bytes | None = None
        self.previous: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        key = self.key.hex()[:8] if self.key else None
        return f"Block({self.block_id}, ref_count={self.ref_count}, key={key})"
