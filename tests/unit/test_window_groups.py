"""Groups with windows: what is kept, what comes back and when, what is found again, and who is let in."""

import pytest
from kv_setup import make_layout, make_manager, make_request, make_scheduler, make_sequence, run_to_computed
from layouts import LONG, SHORT, make
from modelled_executor import ModelledExecutor

from kvasir.core.errors import ConfigError, NeverFitsError
from kvasir.core.events import RequestFinishedEvent
from kvasir.kv.allocation import AllocationKind
from kvasir.kv.audit import audit
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.head_group import HeadGroup
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.manager import KVManager, KVManagerConfig
from kvasir.kv.retention import FULL, RetentionKind, sliding, windowed
from kvasir.kv.usage import group_usage

BOTH = make((None, None), by_head={(0, 1): LONG, (1, 0): LONG})
"""FULL beside 32 sinks and a window of 48 (20 and 40 in whole blocks)."""


def manager_of(layout: KVLayout, num_blocks=32, chunk=64, **settings) -> KVManager:
    counts = num_blocks if isinstance(num_blocks, tuple) else (num_blocks,) * len(layout.groups)
    return KVManager(
        KVManagerConfig(layout=layout, num_blocks=counts, max_model_len=512, max_chunk_tokens=chunk, **settings)
    )


def run(scheduler, executor, *requests) -> dict[str, RequestFinishedEvent]:
    for request in requests:
        scheduler.add(request)
    ended = {}
    while scheduler.has_work:
        events = scheduler.apply(executor.execute(scheduler.schedule()))
        audit(scheduler.manager)
        ended |= {event.request_id: event for event in events if isinstance(event, RequestFinishedEvent)}
    return ended


def test_sinks_and_windows_are_rounded_up_and_shown():
    rule = windowed(sinks=4, window=1000).rounded(16)
    assert (rule.sinks, rule.window, str(rule)) == (16, 1008, "window:sinks=16,window=1008")
    assert rule.rounded(16) == rule
    assert windowed(sinks=0, window=8).rounded(64).window == 64
    with pytest.raises(ValueError, match="has not been fitted"):
        windowed(sinks=4, window=8).first_visible(3)


def test_blocks_come_back_in_the_step_that_hides_them_and_are_counted():
    manager = manager_of(BOTH)
    sequence = make_sequence(1, range(200))
    assert manager.reserve(sequence, 200, manager.lookup(sequence))
    sequence.num_computed_tokens = 200
    manager.commit(sequence)
    used = [pool.num_used for pool in manager.pools]
    manager.trim(sequence)
    full, window = group_usage(manager)
    # Position 200 is in block 12 of 13: sinks are blocks 0 and 1, its window blocks 9, 10 and 11.
    assert used == [13, 13] and (full.num_used, window.num_used) == (13, 2 + 4)
    assert (full.num_trimmed, window.num_trimmed) == (0, 7) and window.num_cached == 7
    assert [i for i, block in enumerate(manager.sequences[1].tables[1].blocks) if block is None] == list(range(2, 9))
    audit(manager)


@pytest.mark.parametrize("layout", [BOTH, make((None, 24)), make((24,)), make((None,), LONG)], ids=str)
@pytest.mark.parametrize("num_output", [1, 20, 90])
def test_an_identical_and_an_extended_prompt_still_hit(layout: KVLayout, num_output: int):
    manager = manager_of(layout, num_blocks=64)
    scheduler, executor = make_scheduler(manager), ModelledExecutor(layout)
    prompt = [i % 50 for i in range(150)]
    run(scheduler, executor, make_request("first", prompt, num_output, ignore_eos=True))
    answer = next(iter(plan.starts[0].token_ids for plan in executor.plans if plan.starts))
    assert list(answer) == prompt
    again = run(scheduler, executor, make_request("again", prompt, 1))["again"]
    assert again.num_cached_tokens == 144
    longer = run(scheduler, executor, make_request("longer", [*prompt, *range(40)], 1))["longer"]
    assert longer.num_cached_tokens == 144


def test_a_hit_needs_sinks_and_the_window_before_it():
    layout = make((None,), LONG)
    manager = manager_of(layout, num_blocks=40, chunk=256)
    first = make_sequence(1, range(200))
    run_to_computed(manager, first)
    blocks = [block for block in manager.sequences[1].tables[0].blocks if block is not None]
    manager.release(first)
    longer = make_sequence(2, [*range(200), 7])
    assert manager.lookup(longer).num_tokens == 192
    hit = manager.lookup(longer)
    assert [i for i, block in enumerate(hit.blocks[0]) if block is None] == list(range(2, 9))
    pool = manager.pools[0]
    pool.forget(blocks[10])  # in the window of boundaries 11, 12 and 13; boundary 10 has all it needs
    assert manager.lookup(longer).num_tokens == 160
    pool.forget(blocks[4])  # 4 is hidden from position 160 on
    assert manager.lookup(longer).num_tokens == 160
    pool.forget(blocks[1])  # a sink: nothing behind it can be used
    assert manager.lookup(longer).num_tokens == 16


def test_few_full_heads_let_more_sequences_run_in_the_same_bytes():
    """The same bytes, the same prompts: with one head of four FULL, more than twice as many run at once."""
    whole = make((None, None))
    split = make((None, None), by_head={(0, 1): SHORT, (1, 0): SHORT, (1, 1): SHORT})
    most = {}
    for name, layout, counts in (("full", whole, (64,)), ("windows", split, (160, 32))):
        num_bytes = sum(spec.pool_bytes(count) for spec, count in zip(layout.groups, counts, strict=True))
        assert num_bytes <= whole.groups[0].pool_bytes(64)
        manager = manager_of(layout, counts, chunk=128, enable_prefix_caching=False)
        scheduler, executor = make_scheduler(manager, max_num_seqs=32), ModelledExecutor(layout)
        for i in range(24):
            scheduler.add(make_request(f"r{i}", [i, *range(1, 200)], 40, ignore_eos=True))
        most[name] = 0
        while scheduler.has_work:
            scheduler.apply(executor.execute(scheduler.schedule()))
            most[name] = max(most[name], len(scheduler.running))
    assert most["windows"] > 2 * most["full"]


def test_what_never_fits_names_the_group_that_is_short():
    scheduler = make_scheduler(manager_of(BOTH, (32, 6)))
    with pytest.raises(NeverFitsError, match=r"up to 10 blocks .*KV cache of the heads with window:sinks=32,window=48"):
        scheduler.add(make_request("r", range(200), 50))


def test_contiguous_regions_would_save_nothing():
    with pytest.raises(
        ConfigError, match=r"--kv-allocation contiguous .* window:sinks=32,window=48 .from --kv-retention"
    ):
        manager_of(BOTH, allocation=AllocationKind.CONTIGUOUS, enable_prefix_caching=False)


def test_the_models_own_windows_stay_what_they_are():
    layout = make((None, 24), LONG)
    assert [spec.retention for spec in layout.groups] == [LONG.rounded(16), sliding(24)]
    with pytest.raises(ConfigError, match="every layer of the model has a window of its own \\(24 tokens\\)"):
        make((24, 24), LONG)
    with pytest.raises(ConfigError, match="a head of layer 1, which has a window of its own \\(24 tokens\\)"):
        make((None, 24), by_head={(1, 0): LONG})


def group(*heads: tuple[int, int], retention=FULL, dtype=KVDtype.BF16) -> HeadGroup:
    return HeadGroup(heads=heads, retention=retention, k_dtype=dtype, v_dtype=dtype)


def layout_of(*groups: HeadGroup) -> KVLayout:
    geometry = KVGeometry(num_layers=2, num_kv_heads=2, head_dim=16, sliding_windows=(None, None))
    return KVLayout.from_geometry(
        geometry, block_size=16, k_dtype=KVDtype.FP32, v_dtype=KVDtype.FP32, head_groups=groups
    )


def test_head_groups_are_a_partition():
    all_but_one = [(0, 0), (0, 1), (1, 0)]
    with pytest.raises(ConfigError, match="leave out 1 of the model's 4 KV heads, for example head 1 of layer 1"):
        layout_of(group(*all_but_one))
    with pytest.raises(ConfigError, match="name KV head 0 of layer 0 twice"):
        layout_of(group(*all_but_one), group((1, 1), (0, 0)))
    with pytest.raises(ConfigError, match="name KV head 2 of layer 0, but the model has 2 layers"):
        layout_of(group(*all_but_one, (1, 1), (0, 2)))


def test_groups_of_one_rule_and_format_are_one_and_the_digest_tells_all_else_apart():
    merged = layout_of(group((1, 1), (0, 0)), group((1, 0), (0, 1)))
    assert len(merged.groups) == 1 and merged.groups[0].heads_by_layer == ((0, 1), (0, 1))
    others = [
        layout_of(group((0, 0), (0, 1)), group((1, 0), (1, 1), dtype=KVDtype.FP16)),
        layout_of(group((0, 0), (0, 1)), group((1, 0), (1, 1), retention=windowed(sinks=4, window=32))),
        layout_of(group((0, 0), (0, 1)), group((1, 0), (1, 1), retention=windowed(sinks=20, window=32))),
        layout_of(group((0, 0), (0, 1)), group((1, 0), (1, 1), retention=windowed(sinks=4, window=33))),
        layout_of(group((0, 0), (1, 1)), group((1, 0), (0, 1), retention=windowed(sinks=4, window=32))),
    ]
    assert len({layout.digest for layout in [merged, *others]}) == 1 + len(others)
    assert [spec.retention.kind for spec in others[1].groups] == [RetentionKind.FULL, RetentionKind.WINDOW]
    assert make_layout().groups[0].retention == FULL
    assert make_manager().num_trimmed == [0]
