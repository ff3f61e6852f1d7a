"""Law 5: nothing leaks.  Recounts everything from scratch and compares; always run in tests, when idle in production.

The invariants are numbered in docs/kv.md.
"""

from collections import Counter

from kvasir.core.errors import InvariantViolation
from kvasir.kv.block import Block
from kvasir.kv.manager import KVManager
from kvasir.kv.pool import BlockPool


def audit(manager: KVManager) -> None:
    """Raise ``InvariantViolation`` naming the first broken invariant; otherwise change and return nothing."""
    for group_id, pool in enumerate(manager.pools):
        _audit_references(manager, group_id, pool)
        _audit_free_list(group_id, pool)
        _audit_keys(manager, group_id, pool)
    _audit_tables(manager)
    _audit_compacted(manager)
    _audit_pending(manager)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantViolation(message)


def _audit_references(manager: KVManager, group_id: int, pool: BlockPool) -> None:
    """I1: a block's reference count is the number of block tables that hold it."""
    counts: Counter[int] = Counter()
    for state in manager.sequences.values():
        counts.update(block.block_id for block in state.tables[group_id].live_blocks())
    for block in pool.blocks:
        _require(
            block.ref_count == counts[block.block_id],
            f"I1: group {group_id} {block!r} is in {counts[block.block_id]} block tables",
        )


def _audit_free_list(group_id: int, pool: BlockPool) -> None:
    """I2: the free list holds exactly the unreferenced blocks, once each.  I3: free + cached + used == total."""
    listed: list[Block] = list(pool.free_list)
    unreferenced = {block.block_id for block in pool.blocks if block.ref_count == 0}
    _require(
        len(listed) == len(unreferenced) and {block.block_id for block in listed} == unreferenced,
        f"I2: group {group_id} lists {len(listed)} blocks as unused, {len(unreferenced)} are",
    )
    num_cached = sum(block.key is not None for block in listed)
    _require(
        num_cached == pool.num_cached, f"I3: group {group_id} counts {pool.num_cached} cached blocks, has {num_cached}"
    )
    _require(
        pool.num_free + pool.num_cached + pool.num_used == pool.num_blocks,
        f"I3: group {group_id}: {pool.num_free} free + {pool.num_cached} cached + {pool.num_used} used "
        f"is not {pool.num_blocks}",
    )


def _audit_keys(manager: KVManager, group_id: int, pool: BlockPool) -> None:
    """I4: every keyed block is findable under its key and the index knows no other block."""
    keyed = {block.block_id: block.key for block in pool.blocks if block.key is not None}
    found: dict[int, bytes] = {}
    for entry in manager.index:
        _require(
            entry.num_present == sum(block is not None for block in entry.blocks) > 0,
            "I4: a prefix entry miscounts its blocks",
        )
        block = entry.blocks[group_id]
        if block is not None:
            found[block.block_id] = entry.key
    _require(keyed == found, f"I4: group {group_id} has {len(keyed)} keyed blocks, the index knows {len(found)}")


def _audit_tables(manager: KVManager) -> None:
    """I5: all groups' tables of a sequence have one length, and exactly the dead entries, which lie behind the sinks
    and can be seen by nobody, hold no block.  I6: keys chain from the root."""
    for sequence_id, state in manager.sequences.items():
        lengths = {len(table) for table in state.tables}
        if manager.regions is None:
            _require(len(lengths) == 1, f"I5: sequence {sequence_id} has block tables of lengths {sorted(lengths)}")
        for spec, table in zip(manager.groups, state.tables, strict=True):
            _require(
                all((block is None) == (i in table.dead) for i, block in enumerate(table.blocks)),
                f"I5: sequence {sequence_id} has a hole in its block table",
            )
            _require(
                table.dead.stop <= len(table)
                and (not table.dead or table.dead.start == spec.retention.sinks // spec.block_size),
                f"I5: sequence {sequence_id} counts {table.dead} as given back, of {len(table)} blocks",
            )
        _require(
            state.num_registered <= max(len(state.keys), 0),
            f"I6: sequence {sequence_id} registered {state.num_registered} blocks with {len(state.keys)} keys",
        )


def _audit_compacted(manager: KVManager) -> None:
    """I6, too: what a sequence holds after part of its prompt was evicted is found by no one else's lookup."""
    for sequence_id, state in manager.sequences.items():
        for table in state.tables:
            _require(
                not state.is_compacted or all(block.key is None for block in table.live_blocks()),
                f"I6: sequence {sequence_id} has a prefix key on a block of a compacted prompt",
            )


def _audit_pending(manager: KVManager) -> None:
    """I7: a key is pending exactly while a sequence that holds blocks has yet to compute it."""
    counts: Counter[bytes] = Counter()
    for state in manager.sequences.values():
        counts.update(state.keys[state.pending.start : state.pending.stop])
    _require(dict(counts) == manager.pending.counts(), "I7: pending prefixes do not match the sequences' own lists")
