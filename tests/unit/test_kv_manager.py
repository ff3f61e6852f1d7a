"""KVManager: hits, holes, copy-on-write, eviction order, regions."""

import pytest
from kv_setup import make_layout, make_manager, make_sequence, run_to_computed

from kvasir.core.errors import ConfigError, InvariantViolation
from kvasir.kv.allocation import AllocationKind
from kvasir.kv.audit import audit
from kvasir.kv.lookup import find_prefix
from kvasir.kv.usage import group_usage, slot_usage


def test_an_identical_prompt_hits_all_but_its_last_block():
    manager = make_manager()
    first = make_sequence(1, range(64))
    assert run_to_computed(manager, first) == 0
    manager.release(first)
    # 64 tokens are 4 whole blocks, but the last token must be computed to have logits.
    assert run_to_computed(manager, make_sequence(2, range(64))) == 48
    assert manager.lookup(make_sequence(3, range(65))).num_tokens == 64
    audit(manager)


def test_a_hit_ends_where_the_tokens_differ():
    manager = make_manager()
    run_to_computed(manager, make_sequence(1, range(100)))
    changed = list(range(100))
    changed[40] = 999
    assert manager.lookup(make_sequence(2, changed)).num_tokens == 32


def test_a_key_collision_is_a_miss_never_a_wrong_hit():
    manager = make_manager()
    run_to_computed(manager, make_sequence(1, range(40)))
    entry = next(iter(manager.index))
    layout = make_layout()
    other_tokens = [9] * 16
    assert find_prefix(manager.index, layout.groups, [entry.key], lambda _: entry.token_ids).num_tokens == 16
    assert find_prefix(manager.index, layout.groups, [entry.key], lambda _: other_tokens).num_tokens == 0


@pytest.mark.parametrize("field", ["cache_salt", "tenant"])
def test_salts_and_tenants_never_share(field):
    manager = make_manager()
    run_to_computed(manager, make_sequence(1, range(64), **{field: "a"}))
    assert manager.lookup(make_sequence(2, range(64), **{field: "b"})).num_tokens == 0
    assert manager.lookup(make_sequence(3, range(64))).num_tokens == 0
    assert manager.lookup(make_sequence(4, range(64), **{field: "a"})).num_tokens == 48


def test_prefixes_outlive_suffixes():
    manager = make_manager(num_blocks=8)
    first = make_sequence(1, range(128))
    run_to_computed(manager, first)
    manager.release(first)
    run_to_computed(manager, make_sequence(2, range(1000, 1048)))  # evicts 3 of the 8 cached blocks
    assert manager.lookup(make_sequence(3, range(128))).num_tokens == 80
    audit(manager)


def test_unkeyed_blocks_are_reused_before_cached_ones():
    manager = make_manager(num_blocks=8)
    whole = make_sequence(1, range(64))
    run_to_computed(manager, whole)
    partial = make_sequence(2, range(500, 510))
    run_to_computed(manager, partial)
    manager.release(whole)
    manager.release(partial)
    run_to_computed(manager, make_sequence(3, range(600, 664)))  # 4 blocks: 3 never used and the partial one
    assert manager.lookup(make_sequence(4, range(65))).num_tokens == 64


def test_reserve_is_all_or_nothing():
    manager = make_manager(num_blocks=4)
    first = make_sequence(1, range(40))
    run_to_computed(manager, first)
    second = make_sequence(2, range(100, 140))
    assert manager.reserve(second, 40, manager.lookup(second)) is None
    assert manager.num_available() == (1,)
    audit(manager)


def test_a_hit_counts_the_cached_blocks_it_takes():
    manager = make_manager(num_blocks=4)
    first = make_sequence(1, range(48))
    run_to_computed(manager, first)
    manager.release(first)
    holder = make_sequence(2, range(900, 910))
    run_to_computed(manager, holder)
    again = make_sequence(3, range(80))  # 3 cached blocks and 2 new ones: only 3 are available in all
    hit = manager.lookup(again)
    assert hit.num_tokens == 48
    assert manager.reserve(again, 32, hit) is None
    audit(manager)


def test_sliding_group_needs_its_whole_window_before_the_boundary():
    """Old blocks of a window may be gone, but a hole inside the window of the next query is no hit."""
    manager = make_manager(num_blocks=16, windows=(40,), chunk=256)
    first = make_sequence(1, range(160))
    run_to_computed(manager, first)
    manager.release(first)
    index = manager.index
    keys = manager.sequences.get(1)
    assert keys is None
    probe = make_sequence(2, range(161))
    manager.lookup(probe)
    keys = manager.sequences[2].keys

    def forget(block_number):
        entry = index.find(keys[block_number], range(block_number * 16, block_number * 16 + 16))
        manager.pools[0].forget(entry.blocks[0])

    forget(0)
    forget(1)
    # Window 40: the query at 160 sees positions from 121 on, in block 7.
    assert manager.lookup(probe).num_tokens == 160
    forget(8)
    # p = 160 needs blocks 7..9, 144 needs 6..8 and 8 is gone; 128 needs 5..7.
    assert manager.lookup(probe).num_tokens == 128
    audit(manager)


def test_hybrid_hit_is_the_longest_valid_in_every_group():
    manager = make_manager(num_blocks=(32, 32), windows=(None, 24), chunk=256)
    first = make_sequence(1, range(160))
    run_to_computed(manager, first)
    manager.release(first)
    probe = make_sequence(2, range(161))
    manager.lookup(probe)
    keys = manager.sequences[2].keys
    entry = manager.index.find(keys[9], range(144, 160))
    manager.pools[1].forget(entry.blocks[1])  # the window's last block is gone, the full group still has all
    hit = manager.lookup(probe)
    assert hit.num_tokens == 144
    assert [block is None for block in hit.blocks[1]] == [True] * 7 + [False] * 2
    assert all(block is not None for block in hit.blocks[0])


def test_trim_gives_back_what_no_query_sees():
    manager = make_manager(num_blocks=16, windows=(32,))
    sequence = make_sequence(1, range(100))
    run_to_computed(manager, sequence)
    assert manager.pools[0].num_used == 7
    manager.trim(sequence)  # the query at 100 sees [69, 100]: blocks 0..3 are dead
    assert manager.pools[0].num_used == 3
    assert manager.lookup(make_sequence(2, range(100))).num_tokens == 96, "freed blocks stay findable until reused"
    audit(manager)


def test_fork_shares_and_the_writer_copies():
    manager = make_manager()
    parent, child = make_sequence(1, range(20)), make_sequence(2, range(20))
    run_to_computed(manager, parent)
    manager.fork(parent, child)
    child.num_computed_tokens = 20
    assert manager.pools[0].num_used == 2
    for sequence in (parent, child):
        sequence.token_ids.append(7)
    first = manager.reserve(parent, 1)
    assert len(first.copies) == 1 and first.copies[0].group_id == 0
    second = manager.reserve(child, 1)
    assert second.copies == (), "the last holder writes in place"
    assert second.table_updates[0].first_index == 0, "a forked sequence announces its whole table"
    assert manager.pools[0].num_used == 3
    audit(manager)


def test_twins_computed_side_by_side_keep_one_copy_findable():
    manager = make_manager()
    first, second = make_sequence(1, range(33)), make_sequence(2, range(33))
    hits = [manager.lookup(s) for s in (first, second)]
    for sequence, hit in zip((first, second), hits, strict=True):
        manager.reserve(sequence, 33, hit)
    for sequence in (first, second):
        sequence.num_computed_tokens = 33
        manager.commit(sequence)
    audit(manager)
    manager.release(second)
    assert manager.pools[0].num_cached == 0, "the second copy is not worth keeping"
    manager.release(first)
    assert manager.pools[0].num_cached == 2


def test_contiguous_reserves_the_whole_context_in_one_run():
    manager = make_manager(
        num_blocks=40, max_model_len=256, enable_prefix_caching=False, allocation=AllocationKind.CONTIGUOUS
    )
    sequences = [make_sequence(i, range(20)) for i in range(3)]
    run_to_computed(manager, sequences[0])
    run_to_computed(manager, sequences[1])
    ids = [block.block_id for block in manager.sequences[1].tables[0].live_blocks()]
    assert ids == list(range(ids[0], ids[0] + 16))
    assert manager.reserve(sequences[2], 20, manager.lookup(sequences[2])) is None
    usage = slot_usage(manager, sequences[:2])
    assert (usage.num_reserved, usage.num_filled) == (512, 40)
    manager.release(sequences[0])
    assert manager.reserve(sequences[2], 20, manager.lookup(sequences[2])) is not None
    audit(manager)


def test_contiguous_with_prefix_caching_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"--kv-allocation contiguous.*--enable-prefix-caching"):
        make_manager(allocation=AllocationKind.CONTIGUOUS)


def test_usage_adds_up():
    manager = make_manager(num_blocks=10)
    first = make_sequence(1, range(40))
    run_to_computed(manager, first)
    manager.release(first)
    run_to_computed(manager, make_sequence(2, range(100, 120)))
    (usage,) = group_usage(manager)
    assert (usage.num_used, usage.num_cached, usage.num_free) == (2, 2, 6)


@pytest.mark.parametrize("damage", ["reference", "key", "cached count", "table hole", "pending"])
def test_audit_sees_planted_damage(damage):
    manager = make_manager()
    first, second = make_sequence(1, range(64)), make_sequence(2, range(100, 164))
    run_to_computed(manager, first)
    manager.reserve(second, 10, manager.lookup(second))
    audit(manager)
    table = manager.sequences[1].tables[0]
    match damage:
        case "reference":
            table.blocks[0].ref_count += 1
        case "key":
            table.blocks[0].key = None
        case "cached count":
            manager.pools[0].num_cached += 1
        case "table hole":
            manager.pools[0].release(table.blocks[1])
            table.blocks[1] = None
        case "pending":
            manager.pending.remove(manager.sequences[2].keys[:1])
    with pytest.raises(InvariantViolation, match=r"^I\d"):
        audit(manager)
