"""PromptEviction through the manager: blocks come back and are counted, the prompt stays findable, nothing leaks."""

import pytest
from kv_setup import make_manager, make_request, make_scheduler, make_sequence, run_to_computed
from modelled_executor import ModelledExecutor, expected_tokens

from kvasir.core.errors import ConfigError, NeverFitsError
from kvasir.core.events import TokensEvent
from kvasir.kv.allocation import AllocationKind
from kvasir.kv.audit import audit
from kvasir.kv.eviction import parse_eviction
from kvasir.kv.retention import sliding
from kvasir.kv.usage import slot_usage

HALF = parse_eviction("keydiff:keep=0.5,sinks=4,recent=16")


def test_half_a_prompt_gives_half_its_blocks_back():
    manager = make_manager(num_blocks=16, eviction=HALF)
    sequence = make_sequence(1, range(160))
    run_to_computed(manager, sequence)
    assert manager.pools[0].num_used == 10
    assert manager.evict(sequence)
    audit(manager)
    assert sequence.num_evicted_tokens == 80
    assert manager.pools[0].num_used == 5
    assert manager.eviction.num_freed_blocks == [5]
    (move,) = manager.eviction.take()
    assert (move.num_tokens, move.num_kept, len(move.sources), len(move.targets)) == (160, 80, 10, 5)
    assert manager.eviction.take() == ()
    assert manager.evict(sequence), "done already"
    assert manager.eviction.take() == ()


def test_the_whole_prompt_is_found_by_the_next_one():
    manager = make_manager(num_blocks=32, eviction=HALF)
    first = make_sequence(1, range(160))
    run_to_computed(manager, first)
    manager.evict(first)
    assert manager.lookup(make_sequence(2, range(170))).num_tokens == 160


def test_what_is_computed_after_an_eviction_is_found_by_nobody():
    manager = make_manager(num_blocks=32, eviction=HALF)
    first = make_sequence(1, range(160))
    run_to_computed(manager, first)
    manager.evict(first)
    for token in range(160, 200):
        first.token_ids.append(token)
        assert manager.reserve(first, 1) is not None
        first.num_computed_tokens += 1
        manager.commit(first)
        audit(manager)
    assert manager.lookup(make_sequence(2, range(220))).num_tokens == 160
    # Slots 0 .. 119 hold 80 kept tokens and 40 new ones.
    assert len(manager.sequences[1].tables[0]) == 8
    usage = slot_usage(manager, [first])
    assert (usage.num_reserved, usage.num_filled) == (128, 120)


def test_a_sequence_that_comes_back_hits_its_prompt_at_most():
    """Somebody else's prompt may hold the same tokens as this prompt with its answer, computed without an eviction."""
    manager = make_manager(num_blocks=64, eviction=HALF)
    run_to_computed(manager, make_sequence(1, range(240)))
    again = make_sequence(2, range(100))
    again.token_ids += range(100, 200)
    assert manager.lookup(again).num_tokens == 96


def test_the_decode_step_asks_for_the_eviction_that_found_no_room():
    """Two sequences share all their blocks, and there are no others: the second copy of anything has no room."""
    manager = make_manager(num_blocks=11, max_model_len=256, chunk=256, eviction=HALF)
    first, second = make_sequence(1, range(161)), make_sequence(2, range(161))
    run_to_computed(manager, first)
    manager.fork(first, second)
    second.num_computed_tokens = 161
    assert not manager.evict(first)
    assert (first.num_evicted_tokens, manager.eviction.take()) == (0, ())
    first.token_ids.append(7)
    assert not manager.is_ready(first)
    assert manager.reserve(first, 1) is None
    audit(manager)
    manager.release(second)
    assert manager.reserve(first, 1) is not None
    assert first.num_evicted_tokens == 80
    audit(manager)


def test_a_slot_that_is_there_already_does_not_let_a_token_past_the_eviction():
    """The prompt's last block has room for the next token, but that token belongs behind what is kept."""
    manager = make_manager(num_blocks=12, max_model_len=256, chunk=256, eviction=HALF)
    first, second = make_sequence(1, range(161)), make_sequence(2, range(161))
    run_to_computed(manager, first)
    assert run_to_computed(manager, second) == 160
    assert not manager.evict(first)
    first.token_ids.append(7)
    assert not manager.is_ready(first)
    assert manager.reserve(first, 1) is None
    manager.release(second)
    assert manager.reserve(first, 1) is not None
    assert (first.num_evicted_tokens, len(manager.sequences[1].tables[0])) == (80, 6)
    audit(manager)


def test_siblings_share_what_was_kept():
    manager = make_manager(num_blocks=32, eviction=HALF)
    parent, child = make_sequence(1, range(150)), make_sequence(2, range(150))
    run_to_computed(manager, parent)
    manager.evict(parent)
    manager.fork(parent, child)
    child.num_computed_tokens = 150
    assert child.num_evicted_tokens == 75
    for sequence, token in ((parent, 7), (child, 8)):
        sequence.token_ids.append(token)
        assert manager.reserve(sequence, 1) is not None
    assert manager.sequences[1].tables[0].blocks[:4] == manager.sequences[2].tables[0].blocks[:4]
    assert manager.sequences[1].tables[0].blocks[4] is not manager.sequences[2].tables[0].blocks[4]
    audit(manager)
    for sequence in (parent, child):
        manager.release(sequence)
    assert parent.num_evicted_tokens == 0
    audit(manager)


def test_pinned_tokens_are_kept_whatever_the_share():
    manager = make_manager(num_blocks=32, eviction=HALF)
    sequence = make_sequence(1, range(160))
    object.__setattr__(sequence.request, "num_pinned_tokens", 120)
    run_to_computed(manager, sequence)
    manager.evict(sequence)
    (move,) = manager.eviction.take()
    assert (move.num_pinned, move.num_kept) == (120, 136)


def test_the_door_counts_the_peak_which_is_the_prompt_or_what_follows_it():
    manager = make_manager(num_blocks=10, eviction=HALF)
    scheduler = make_scheduler(manager)
    scheduler.add(make_request("a", range(160), max_tokens=80))
    with pytest.raises(NeverFitsError, match="needs up to 11 blocks"):
        scheduler.add(make_request("b", range(160), max_tokens=90))
    with pytest.raises(NeverFitsError, match="needs up to 11 blocks"):
        scheduler.add(make_request("c", range(161), max_tokens=1))


def run(scheduler, executor):
    tokens: dict[tuple[str, int], list[int]] = {}
    while (plan := scheduler.schedule()) is not None:
        for event in scheduler.apply(executor.execute(plan)):
            if isinstance(event, TokensEvent):
                tokens.setdefault((event.request_id, event.index), []).extend(event.token_ids)
        audit(scheduler.manager)
    return tokens


def test_preemption_cuts_again_where_the_prompt_ends():
    manager = make_manager(num_blocks=17, max_model_len=256, chunk=64, eviction=HALF)
    scheduler = make_scheduler(manager)
    prompts = {f"r{i}": [i, *range(119)] for i in range(3)}
    for request_id, prompt in prompts.items():
        scheduler.add(make_request(request_id, prompt, max_tokens=60, ignore_eos=True))
    executor = ModelledExecutor(manager.config.layout, eviction=HALF)
    tokens = run(scheduler, executor)
    assert scheduler.stats.num_preemptions > 0
    assert tokens == {(r, 0): expected_tokens(prompt, 0, 60) for r, prompt in prompts.items()}
    assert manager.pools[0].num_used == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"allocation": AllocationKind.CONTIGUOUS, "enable_prefix_caching": False},
            "--kv-eviction keydiff.*--kv-allocation contiguous",
        ),
        ({"windows": (None, 24)}, "--kv-eviction keydiff.*window of 24 tokens.*--kv-retention"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(settings, message):
    assert sliding(24).window == 24
    with pytest.raises(ConfigError, match=message):
        make_manager(eviction=HALF, **settings)
