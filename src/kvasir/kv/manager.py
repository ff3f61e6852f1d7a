"""``KVManager``: all the scheduler sees of memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kvasir.core.errors import InvariantViolation
from kvasir.core.sequence import Sequence
from kvasir.core.step import BlockCopy, TableUpdate
from kvasir.kv.allocation import AllocationKind, Regions, check_allocation
from kvasir.kv.block import Block
from kvasir.kv.content import ContentOf, token_content
from kvasir.kv.eviction import EvictionRule
from kvasir.kv.free_list import FreeList
from kvasir.kv.hashing import root_key
from kvasir.kv.layout import KVLayout
from kvasir.kv.lookup import PrefixHit, find_prefix
from kvasir.kv.pending_prefixes import PendingPrefixes
from kvasir.kv.pool import BlockPool
from kvasir.kv.prefix_index import PrefixIndex
from kvasir.kv.prompt_eviction import PromptEviction, check_eviction
from kvasir.kv.sequence_blocks import SequenceBlocks
from kvasir.kv.sparse_read import SparseRead, num_alike_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class KVManagerConfig:
    """``num_blocks`` per group.  ``max_model_len`` and ``max_chunk_tokens`` bound what one sequence can need.

    ``content_of`` and ``make_free_list`` (called once a group) are for replaying recorded traffic, where tokens are
    known by stand-ins only and other orders of eviction are compared; the engine leaves them alone."""

    layout: KVLayout
    num_blocks: tuple[int, ...]
    max_model_len: int
    max_chunk_tokens: int
    model_digest: str = ""
    enable_prefix_caching: bool = True
    allocation: AllocationKind = AllocationKind.PAGED
    eviction: EvictionRule | None = None
    sparse_read: SparseRead | None = None
    content_of: ContentOf = token_content
    make_free_list: Callable[[], FreeList] = FreeList

    def __post_init__(self) -> None:
        check_allocation(
            self.allocation,
            enable_prefix_caching=self.enable_prefix_caching,
            retentions=[spec.retention for spec in self.layout.groups],
        )
        check_eviction(self.eviction, self.layout, self.allocation)


class Reservation(NamedTuple):
    """Room for the tokens asked for.  The updates and copies go into the plan as they are."""

    table_updates: tuple[TableUpdate, ...] = ()
    copies: tuple[BlockCopy, ...] = ()


NOTHING_TO_DO = Reservation()


class KVManager:
    """Owns the pools, the prefix index and every sequence's block tables.

    Life of a sequence here: ``lookup`` (no change), ``reserve`` before each step, ``commit`` after it, ``trim`` when
    blocks may have become invisible, ``fork`` for siblings, ``release`` at the end.  ``reserve`` is all or nothing:
    when it returns None, nothing changed.
    """

    def __init__(self, config: KVManagerConfig) -> None:
        self.config = config
        self.groups = config.layout.groups
        self.block_size = config.layout.block_size
        if len(config.num_blocks) != len(self.groups):
            raise ValueError(f"{len(config.num_blocks)} pool sizes given for {len(self.groups)} groups")
        self.index = PrefixIndex(len(self.groups))
        self.pools = [BlockPool(n, self._evictor(g), config.make_free_list()) for g, n in enumerate(config.num_blocks)]
        self.sequences: dict[int, SequenceBlocks] = {}
        self.pending = PendingPrefixes()
        self._is_caching = config.enable_prefix_caching
        self._content_of = config.content_of
        self._roots: dict[tuple[str, str], bytes] = {}
        self._has_windows = any(spec.retention.window for spec in self.groups)
        self.num_trimmed = [0] * len(self.groups)
        """Blocks given back because no query could see them any more, by group, since the start."""
        self.eviction = PromptEviction(config.eviction, self.pools)
        self.regions: Regions | None = None
        if config.allocation is AllocationKind.CONTIGUOUS:
            whole = tuple(-(-config.max_model_len // self.block_size) for _ in self.groups)
            self.regions = Regions(config.num_blocks, whole)

    # ---- what could be had

    def lookup(self, sequence: Sequence) -> PrefixHit:
        """The longest cached prefix of ``sequence`` valid in every group; always leaves the last token to compute.

        Changes nothing but the memory of the sequence's keys."""
        if not self.config.enable_prefix_caching:
            return PrefixHit(0, tuple(() for _ in self.groups))
        num_blocks = self._num_cacheable(sequence)
        keys = self.keys_of(sequence, num_blocks)
        return find_prefix(
            self.index, self.groups, keys, lambda index: self._content_of(sequence, index, self.block_size)
        )

    def keys_of(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        """The prefix keys of the first ``num_blocks`` blocks of ``sequence``, all of whose tokens must be known.

        Changes nothing but the memory of the sequence's keys."""
        keys = self._state(sequence).extend_keys(sequence, num_blocks, self.block_size, self._content_of)
        return keys[:num_blocks]

    def is_being_computed(self, sequence: Sequence, hit: PrefixHit) -> bool:
        """Some running sequence is computing the block right after ``hit``: waiting a little turns it into a hit."""
        state = self.sequences.get(sequence.sequence_id)
        next_block = hit.num_tokens // self.block_size
        return (
            state is not None
            and next_block < self._num_cacheable(sequence)
            and next_block < len(state.keys)
            and state.keys[next_block] in self.pending
        )

    def blocks_to_finish(self, sequence: Sequence, hit: PrefixHit | None = None) -> tuple[int, ...]:
        """Per group, how many more available blocks it takes to compute all present tokens of ``sequence``.

        A block of the hit that is cached (not in use) counts, because taking it makes it unavailable."""
        state = self.sequences.get(sequence.sequence_id)
        num_done = hit.num_tokens if hit is not None else sequence.num_computed_tokens
        chunk_tokens = min(self.config.max_chunk_tokens, sequence.num_tokens - num_done)
        needs = []
        for g, spec in enumerate(self.groups):
            most = spec.max_blocks(self.eviction.most_slots(sequence), chunk_tokens)
            held = 0
            if hit is not None:
                held = sum(block is not None and block.ref_count > 0 for block in hit.blocks[g])
            elif state is not None:
                held = state.tables[g].num_live
            needs.append(max(0, most - held))
        return tuple(needs)

    def is_ready(self, sequence: Sequence) -> bool:
        """All present tokens of ``sequence`` have their slots."""
        return len(sequence.token_ids) <= self.sequences[sequence.sequence_id].num_ready_slots

    def num_available(self) -> tuple[int, ...]:
        return tuple(pool.num_available for pool in self.pools)

    def can_ever_hold(self, num_tokens: int) -> bool:
        """An empty pool has room for one sequence that takes ``num_tokens`` slots."""
        if self.regions is not None:
            return self.regions.num_regions > 0 and num_tokens <= self.config.max_model_len
        return all(
            spec.max_blocks(num_tokens, self.config.max_chunk_tokens) <= pool.num_blocks
            for spec, pool in zip(self.groups, self.pools, strict=True)
        )

    # ---- taking and giving back

    def reserve(self, sequence: Sequence, num_new_tokens: int, hit: PrefixHit | None = None) -> Reservation | None:
        """Make room for tokens [num_computed, num_computed + num_new_tokens), or None and no change.

        ``hit`` is given once, on a sequence without blocks, and must come from a ``lookup`` since the pool last
        changed; the sequence's ``num_computed_tokens`` is then the hit's."""
        state = self.sequences.get(sequence.sequence_id) or self._state(sequence)
        start = hit.num_tokens if hit is not None else sequence.num_computed_tokens
        end = start + num_new_tokens
        if end <= state.num_ready_slots:
            return NOTHING_TO_DO
        if not self.eviction.run(sequence, state, self.block_size):
            return None
        start, end = start - sequence.num_evicted_tokens, end - sequence.num_evicted_tokens
        if self.regions is not None:
            return self._reserve_region(self.regions, state)
        num_entries = -(-end // self.block_size)
        is_copy_needed = self._needs_copy(state, start)
        if not self._has_room(state, num_entries, is_copy_needed, hit):
            return None
        if hit is not None and hit.num_tokens:
            self._adopt(state, hit)
        copies = self._copy_on_write(state, start) if is_copy_needed else ()
        first_new = len(state.tables[0]) - (1 if copies else 0)
        for table, pool in zip(state.tables, self.pools, strict=True):
            table.blocks.extend(pool.allocate() for _ in range(num_entries - len(table)))
        state.is_shared = False
        state.num_ready_slots = len(state.tables[0]) * self.block_size + sequence.num_evicted_tokens
        if not sequence.num_evicted_tokens and self.eviction.num_to_evict(sequence):
            state.num_ready_slots = min(state.num_ready_slots, sequence.num_prompt_tokens)  # then it has to evict
        if state.must_announce:
            first_new = 0
            state.must_announce = False
            self._announce_pending(sequence, state)
        updates = tuple(
            TableUpdate(g, first_new, table.block_ids(first_new))
            for g, table in enumerate(state.tables)
            if first_new < len(table)
        )
        return Reservation(updates, copies)

    def commit(self, sequence: Sequence) -> None:
        """Tokens [0, ``num_computed_tokens``) are in the store: whole blocks become findable.

        Not those of a sequence whose prompt was compacted: what they hold depends on more than the tokens before."""
        state = self.sequences[sequence.sequence_id]
        num_alike = num_alike_blocks(sequence, self.block_size, self.config.sparse_read)
        num_whole = min(sequence.num_computed_tokens // self.block_size, num_alike)
        if num_whole <= state.num_registered or not self._is_caching or sequence.num_evicted_tokens:
            return
        keys = state.extend_keys(sequence, num_whole, self.block_size, self._content_of)
        for i in range(state.num_registered, num_whole):
            content = self._content_of(sequence, i, self.block_size)
            for g, table in enumerate(state.tables):
                block = table.blocks[i]
                if block is None or block.key is not None:
                    continue
                if self.index.insert(keys[i], content, g, block):
                    self.pools[g].set_key(block, keys[i])
        state.num_registered = num_whole
        self._withdraw_pending(state, num_whole)

    def trim(self, sequence: Sequence) -> None:
        """Give back blocks that no query at ``num_computed_tokens`` or later can see.

        To be called whenever tokens have been computed, after ``commit``; costs nothing while nothing can go."""
        if not self._has_windows or self.regions is not None:
            return
        state = self.sequences.get(sequence.sequence_id)
        position = sequence.num_computed_tokens
        if state is None or position < state.trim_position:
            return
        trim_positions = []
        for g, spec in enumerate(self.groups):
            rule = spec.retention
            # Tail first, as in ``release``.
            taken = state.tables[g].bury(rule.dead_blocks(position, self.block_size))
            for block in reversed(taken):
                self.pools[g].release(block)
            self.num_trimmed[g] += len(taken)
            next_position = rule.next_dead_position(position, self.block_size)
            if next_position is not None:
                trim_positions.append(next_position)
        state.trim_position = min(trim_positions)

    def evict(self, sequence: Sequence) -> bool:
        """When all of its prompt and no more is computed and the rule takes some of it: give those tokens' blocks back.

        False: it should, but there is no room for what is kept; ``reserve`` then tries again before anything else."""
        return self.eviction.run(sequence, self.sequences[sequence.sequence_id], self.block_size)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """``child`` shares every block of ``parent``; whoever writes into a shared block first copies it."""
        if self.regions is not None:
            raise InvariantViolation("contiguous allocation cannot share blocks between siblings")
        source = self.sequences[parent.sequence_id]
        state = self._state(child)
        for g, table in enumerate(source.tables):
            for block in table.live_blocks():
                self.pools[g].acquire(block)
            state.tables[g].blocks = list(table.blocks)
            state.tables[g].dead = table.dead
        state.keys = list(source.keys)
        state.num_registered = source.num_registered
        state.trim_position = source.trim_position
        state.is_shared = source.is_shared = True
        state.is_compacted = source.is_compacted
        child.num_evicted_tokens = parent.num_evicted_tokens
        source.num_ready_slots = 0  # the next write must ask whether a copy is needed

    def release(self, sequence: Sequence) -> None:
        """Give back everything, tail first, so that prefixes outlive suffixes.  Does nothing when nothing is held."""
        state = self.sequences.pop(sequence.sequence_id, None)
        if state is None:
            return
        sequence.num_evicted_tokens = 0
        self._withdraw_pending(state, state.pending.stop)
        for table, pool in zip(state.tables, self.pools, strict=True):
            for block in reversed(table.blocks):
                if block is not None:
                    pool.release(block)
        if state.region_id is not None and self.regions is not None:
            self.regions.give_back(state.region_id)

    def reset_prefix_cache(self) -> int:
        """Forget every cached block that is not in use; returns how many blocks were forgotten."""
        num_forgotten = 0
        for pool in self.pools:
            for block in list(pool.free_list):
                if block.key is not None:
                    pool.forget(block)
                    num_forgotten += 1
        return num_forgotten

    # ---- inside

    def _evictor(self, group_id: int):
        return lambda block: self.index.remove(group_id, block)

    def _state(self, sequence: Sequence) -> SequenceBlocks:
        state = self.sequences.get(sequence.sequence_id)
        if state is None:
            state = SequenceBlocks(len(self.groups), self._root(sequence.request.tenant, sequence.request.cache_salt))
            self.sequences[sequence.sequence_id] = state
        return state

    def _root(self, tenant: str, salt: str) -> bytes:
        root = self._roots.get((tenant, salt))
        if root is None:
            if len(self._roots) >= 4096:  # salts may be one per request; the keys are cheap to make again
                self._roots.clear()
            root = root_key(
                model_digest=self.config.model_digest,
                layout_digest=self.config.layout.digest,
                tenant=tenant,
                salt=salt,
            )
            self._roots[tenant, salt] = root
        return root

    def _num_cacheable(self, sequence: Sequence) -> int:
        num_alike = num_alike_blocks(sequence, self.block_size, self.config.sparse_read)
        return min(self.eviction.num_cacheable(sequence, self.block_size), num_alike)

    def _needs_copy(self, state: SequenceBlocks, start: int) -> bool:
        if not state.is_shared or start % self.block_size == 0:
            return False
        return any(_last(table.blocks).ref_count > 1 for table in state.tables)

    def _has_room(self, state: SequenceBlocks, num_entries: int, is_copy_needed: bool, hit: PrefixHit | None) -> bool:
        for g, (table, pool) in enumerate(zip(state.tables, self.pools, strict=True)):
            held = len(table)
            taken_from_cache = 0
            if hit is not None:
                held = len(hit.blocks[g])
                taken_from_cache = sum(block is not None and block.ref_count == 0 for block in hit.blocks[g])
            if num_entries - held + is_copy_needed + taken_from_cache > pool.num_available:
                return False
        return True

    def _adopt(self, state: SequenceBlocks, hit: PrefixHit) -> None:
        for g, blocks in enumerate(hit.blocks):
            table = state.tables[g]
            if table.blocks:
                raise InvariantViolation("a prefix hit was given to a sequence that holds blocks")
            for block in blocks:
                if block is not None:
                    self.pools[g].acquire(block)
            table.blocks = list(blocks)
            table.dead = self.groups[g].retention.dead_blocks(hit.num_tokens, self.block_size)
        state.num_registered = hit.num_tokens // self.block_size

    def _copy_on_write(self, state: SequenceBlocks, start: int) -> tuple[BlockCopy, ...]:
        """Replace the partly filled last block by a private copy where a sibling still reads it."""
        copies = []
        for g, (table, pool) in enumerate(zip(state.tables, self.pools, strict=True)):
            shared = _last(table.blocks)
            if shared.ref_count == 1:
                continue
            private = pool.allocate()
            pool.release(shared)
            table.blocks[start // self.block_size] = private
            copies.append(BlockCopy(g, shared.block_id, private.block_id))
        state.is_shared = False
        return tuple(copies)

    def _reserve_region(self, regions: Regions, state: SequenceBlocks) -> Reservation | None:
        if regions.num_free == 0:
            return None
        state.region_id = regions.take()
        updates = []
        for g, (table, pool) in enumerate(zip(state.tables, self.pools, strict=True)):
            table.blocks = [pool.take(block_id) for block_id in regions.block_ids(state.region_id, g)]
            updates.append(TableUpdate(g, 0, table.block_ids()))
        state.num_ready_slots = len(state.tables[0]) * self.block_size
        return Reservation(tuple(updates))

    def _announce_pending(self, sequence: Sequence, state: SequenceBlocks) -> None:
        """When a sequence first gets blocks: say which whole blocks of its tokens it is going to compute."""
        if not self.config.enable_prefix_caching:
            return
        num_whole = self._num_cacheable(sequence)
        keys = state.extend_keys(sequence, num_whole, self.block_size, self._content_of)
        state.pending = range(state.num_registered, max(num_whole, state.num_registered))
        self.pending.add(keys[state.pending.start : state.pending.stop])

    def _withdraw_pending(self, state: SequenceBlocks, num_done: int) -> None:
        """Keys below ``num_done`` are computed, or never will be by this sequence."""
        stop = min(num_done, state.pending.stop)
        if stop > state.pending.start:
            self.pending.remove(state.keys[state.pending.start : stop])
            state.pending = range(stop, state.pending.stop)


def _last(blocks: list[Block | None]) -> Block:
    block = blocks[-1]
    if block is None:
        raise InvariantViolation("the block being written to was given back")
    return block
