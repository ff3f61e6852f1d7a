"""What the manager knows of one sequence: its block tables and the keys of its whole blocks."""

from kvasir.core.sequence import Sequence
from kvasir.kv.block_table import BlockTable
from kvasir.kv.content import ContentOf
from kvasir.kv.hashing import block_key


class SequenceBlocks:
    """``keys[i]`` names tokens [0, (i + 1) * block_size); they are made on demand and only ever appended.

    ``num_registered`` whole blocks were offered to the prefix index.  ``is_shared`` is set while the last block may
    be referenced by a sibling (copy before write).  ``must_announce`` asks for the whole table in the next row.
    ``num_ready_slots``: tokens [0, num_ready_slots) can be written without asking the pools.
    ``trim_position``: while fewer tokens are computed, no block can have become invisible since the last look.
    ``is_compacted``: part of the prompt was evicted, and the blocks hold what is left.
    ``pending`` are the indices of the keys announced as being computed (see ``PendingPrefixes``).
    """

    __slots__ = (
        "is_compacted",
        "is_shared",
        "keys",
        "must_announce",
        "num_ready_slots",
        "num_registered",
        "pending",
        "region_id",
        "root",
        "tables",
        "trim_position",
    )

    def __init__(self, num_groups: int, root: bytes) -> None:
        self.tables = [BlockTable() for _ in range(num_groups)]
        self.root = root
        self.keys: list[bytes] = []
        self.num_registered = 0
        self.num_ready_slots = 0
        self.trim_position = 0
        self.pending = range(0)
        self.is_compacted = False
        self.is_shared = False
        self.must_announce = True
        self.region_id: int | None = None

    def extend_keys(self, sequence: Sequence, num_blocks: int, block_size: int, content_of: ContentOf) -> list[bytes]:
        """At least the keys of the first ``num_blocks`` whole blocks of ``sequence``; mutates ``keys``."""
        keys = self.keys
        parent = keys[-1] if keys else self.root
        for index in range(len(keys), num_blocks):
            parent = block_key(parent, content_of(sequence, index, block_size))
            keys.append(parent)
        return keys
