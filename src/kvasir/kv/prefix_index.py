"""Finds computed blocks by what they hold: key -> the blocks of every group that hold it now."""

from collections.abc import Sequence

from kvasir.core.errors import InvariantViolation
from kvasir.kv.block import Block


class PrefixEntry:
    """One block's worth of tokens after one prefix; ``blocks[g]`` is group g's block, or None when evicted there.

    ``token_ids`` is what names the block's content: its tokens, unless the manager was told otherwise (``content.py``).
    """

    __slots__ = ("blocks", "key", "num_present", "token_ids")

    def __init__(self, key: bytes, token_ids: tuple[int, ...], num_groups: int) -> None:
        self.key = key
        self.token_ids = token_ids
        self.blocks: list[Block | None] = [None] * num_groups
        self.num_present = 0


class PrefixIndex:
    def __init__(self, num_groups: int) -> None:
        self._num_groups = num_groups
        self._entries: dict[bytes, PrefixEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self):
        return iter(self._entries.values())

    def find(self, key: bytes, token_ids: Sequence[int]) -> PrefixEntry | None:
        """The entry of ``key`` if it stores exactly ``token_ids``; a colliding key is a miss, never a wrong hit."""
        entry = self._entries.get(key)
        if entry is None or entry.token_ids != tuple(token_ids):
            return None
        return entry

    def insert(self, key: bytes, token_ids: Sequence[int], group_id: int, block: Block) -> bool:
        """Remember ``block`` of ``group_id`` under ``key``.

        False, and nothing changes, when the group already has a block there (two sequences computed the same prefix
        side by side) or the key is taken by other tokens."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = PrefixEntry(key, tuple(token_ids), self._num_groups)
        elif entry.blocks[group_id] is not None or entry.token_ids != tuple(token_ids):
            return False
        entry.blocks[group_id] = block
        entry.num_present += 1
        return True

    def remove(self, group_id: int, block: Block) -> None:
        """Forget ``block``; the entry goes with its last block."""
        entry = self._entries.get(block.key) if block.key is not None else None
        if entry is None or entry.blocks[group_id] is not block:
            raise InvariantViolation(f"{block!r} has a key that the prefix index does not know")
        entry.blocks[group_id] = None
        entry.num_present -= 1
        if entry.num_present == 0:
            del self._entries[entry.key]
