"""How full the cache is, counted from the pools and tables themselves."""

from dataclasses import dataclass

from kvasir.core.sequence import Sequence
from kvasir.kv.manager import KVManager


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUsage:
    """Blocks of one group: ``num_used + num_cached + num_free == num_blocks``.

    ``num_trimmed`` counts, since the start, blocks that came back because no query could see them any more."""

    num_blocks: int
    num_used: int
    num_cached: int
    num_free: int
    num_trimmed: int = 0

    @property
    def used_fraction(self) -> float:
        return self.num_used / self.num_blocks if self.num_blocks else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUsage:
    """Token slots of used blocks over all groups, and how many of them hold a token."""

    num_reserved: int
    num_filled: int

    @property
    def wasted_fraction(self) -> float:
        """Share of reserved slots that hold nothing; 0 when nothing is reserved."""
        return 1.0 - self.num_filled / self.num_reserved if self.num_reserved else 0.0


def group_usage(manager: KVManager) -> tuple[GroupUsage, ...]:
    return tuple(
        GroupUsage(
            num_blocks=pool.num_blocks,
            num_used=pool.num_used,
            num_cached=pool.num_cached,
            num_free=pool.num_free,
            num_trimmed=num_trimmed,
        )
        for pool, num_trimmed in zip(manager.pools, manager.num_trimmed, strict=True)
    )


def slot_usage(manager: KVManager, sequences: list[Sequence]) -> SlotUsage:
    """Walks every block table: for reports, not for every step.  A block shared by several sequences counts once, as
    full as the fullest of them makes it."""
    block_size = manager.block_size
    num_reserved = num_filled = 0
    for g in range(len(manager.groups)):
        filled: dict[int, int] = {}
        for sequence in sequences:
            state = manager.sequences.get(sequence.sequence_id)
            if state is None:
                continue
            for i, block in enumerate(state.tables[g].blocks):
                if block is not None:
                    filled_slots = sequence.num_computed_tokens - sequence.num_evicted_tokens
                    tokens = min(max(filled_slots - i * block_size, 0), block_size)
                    filled[block.block_id] = max(filled.get(block.block_id, 0), tokens)
        num_reserved += len(filled) * block_size
        num_filled += sum(filled.values())
    return SlotUsage(num_reserved=num_reserved, num_filled=num_filled)
