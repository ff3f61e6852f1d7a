"""What the KV cache offers to replays: other orders of eviction, and contents named by stand-ins."""

import pytest
from kv_setup import make_manager, make_sequence, run_to_computed

from kvasir.core.errors import InvariantViolation
from kvasir.kv.audit import audit
from kvasir.kv.pool import BlockPool
from kvasir.kv.ranked_free_list import FifoRanking, RankedFreeList


def cached_pool(num_blocks: int, keys: str) -> BlockPool:
    """A pool whose blocks became findable under ``keys`` in this order and were then given back in reverse."""
    pool = BlockPool(num_blocks, lambda block: None, RankedFreeList(FifoRanking()))
    blocks = [pool.allocate() for _ in keys]
    for block, key in zip(blocks, keys, strict=True):
        pool.set_key(block, key.encode())
    for block in reversed(blocks):
        pool.release(block)
    return pool


def evicted(pool: BlockPool, count: int) -> list[str]:
    order: list[str] = []
    pool._on_evict = lambda block: order.append((block.key or b"").decode())
    for _ in range(count):
        pool.allocate()
    return order


def test_fifo_goes_by_when_a_block_became_findable():
    assert evicted(cached_pool(3, "abc"), 3) == ["a", "b", "c"]


def test_a_hit_does_not_save_a_block_from_fifo():
    pool = cached_pool(3, "abc")
    first = next(block for block in pool.blocks if block.key == b"a")
    pool.acquire(first)
    pool.release(first)
    assert evicted(pool, 3) == ["a", "b", "c"]


def test_a_block_in_use_is_passed_over_and_comes_back_in_its_place():
    pool = cached_pool(4, "abc")
    first = next(block for block in pool.blocks if block.key == b"a")
    pool.acquire(first)
    assert evicted(pool, 2) == ["b"]  # the one free block went first
    pool.release(first)
    assert evicted(pool, 2) == ["a", "c"]


def test_blocks_that_hold_nothing_are_reused_before_cached_ones():
    pool = cached_pool(5, "ab")
    assert (pool.num_free, pool.num_cached, pool.num_used) == (3, 2, 0)
    assert evicted(pool, 3) == []
    assert (pool.num_free, pool.num_cached, pool.num_used) == (0, 2, 3)


def test_iteration_is_the_order_of_reuse():
    pool = cached_pool(4, "abc")
    listed = [block.key for block in pool.free_list]
    assert listed == [None, b"a", b"b", b"c"]
    assert [pool.allocate().block_id for _ in range(4)] == [3, 0, 1, 2]


def test_ranked_list_refuses_misuse():
    ranked = RankedFreeList(FifoRanking())
    with pytest.raises(InvariantViolation):
        ranked.pop_first()
    pool = cached_pool(1, "a")
    with pytest.raises(InvariantViolation):
        pool.free_list.append(pool.blocks[0])


def test_manager_with_another_order_keeps_every_invariant():
    manager = make_manager(num_blocks=6, make_free_list=lambda: RankedFreeList(FifoRanking()))
    for number in range(12):
        sequence = make_sequence(number, [number % 5] * 40)
        run_to_computed(manager, sequence)
        audit(manager)
        manager.release(sequence)
        audit(manager)
    assert manager.pools[0].num_cached == 5  # the sixth was the unfinished block of the last one
    assert manager.reset_prefix_cache() == 5
    audit(manager)


def test_contents_may_be_named_by_stand_ins():
    """Tokens that look alike are told apart by their names, and hits are found through them."""
    names = {0: (70, 71), 1: (70, 72), 2: (70, 71)}
    manager = make_manager(content_of=lambda sequence, index, _: (names[sequence.sequence_id][index],))
    sequences = [make_sequence(number, [0] * 33) for number in names]
    assert [run_to_computed(manager, sequence) for sequence in sequences] == [0, 16, 32]
    audit(manager)


def test_keys_can_be_asked_for():
    manager = make_manager()
    one, other = make_sequence(1, range(40)), make_sequence(2, [*range(16), *range(100, 124)])
    assert manager.keys_of(one, 2)[0] == manager.keys_of(other, 2)[0]
    assert manager.keys_of(one, 2)[1] != manager.keys_of(other, 2)[1]
