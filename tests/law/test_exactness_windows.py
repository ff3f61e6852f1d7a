"""Law 1 with windows of ours: the same prompt gives the same tokens and log-probabilities for every mixture of groups.

The prompt is several windows long, so most of what it computes has been given back by the time it answers.
"""

from dataclasses import replace

import pytest
from test_exactness_eviction import answers
from test_exactness_law import Bench, ask, bench  # noqa: F401  (bench is a fixture)

from kvasir.core.sampling import SamplingParams
from kvasir.engine.assembly import build
from kvasir.engine.engine import Engine
from kvasir.engine.flags import make_engine_config
from kvasir.engine.memory import available_memory
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.head_group import HeadGroup, all_heads
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.manager import KVManager
from kvasir.kv.retention import FULL, windowed

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=1)
FLAG = "window:sinks=4,window=32"


def by_head(layout: KVLayout) -> KVLayout:
    """Three rules and three pairs of formats, side by side in every layer."""
    rules = (
        (FULL, KVDtype.INT8, KVDtype.INT8),
        (windowed(sinks=4, window=32), KVDtype.BF16, KVDtype.INT8),
        (windowed(sinks=0, window=50), KVDtype.INT8, KVDtype.BF16),
    )
    heads = all_heads(layout.num_layers, layout.num_kv_heads)
    groups = tuple(
        HeadGroup(
            heads=tuple((layer, head) for layer, head in heads if (layer + head) % 3 == place),
            retention=retention,
            k_dtype=k_dtype,
            v_dtype=v_dtype,
        )
        for place, (retention, k_dtype, v_dtype) in enumerate(rules)
    )
    geometry = KVGeometry(
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.groups[0].head_dim,
        sliding_windows=(None,) * layout.num_layers,
    )
    return KVLayout.from_geometry(
        geometry, block_size=layout.block_size, k_dtype=KVDtype.BF16, v_dtype=KVDtype.BF16, head_groups=groups
    )


MIXTURES = {"window on all heads": ({"kv_retention": FLAG}, None), "three rules by head": ({}, by_head)}


@pytest.fixture(scope="module", params=MIXTURES)
def mixture(request) -> str:
    return request.param


def engine_of(bench: Bench, mixture: str, **flags) -> Engine:  # noqa: F811
    given, alter_layout = MIXTURES[mixture]
    config = make_engine_config(**{"kv_cache_memory": "256MiB", "max_model_len": 1024, **given, **flags})
    return Engine(build(bench.loaded, config, available_memory(), alter_layout=alter_layout))


@pytest.fixture(scope="module")
def alone(bench: Bench, mixture: str):  # noqa: F811
    engine = engine_of(bench, mixture)
    answer = answers(engine, ask(bench.prompt, sampling=GREEDY))["r", 0]
    num_blocks = (len(bench.prompt) + GREEDY.max_tokens - 1) // 16
    for spec, group in zip(engine.layout.groups, engine.stats().groups, strict=True):
        expected = len(spec.retention.dead_blocks(len(bench.prompt) + GREEDY.max_tokens - 1, 16))
        assert group.num_trimmed == expected and (expected > num_blocks // 2) == (spec.retention.window > 0)
    return answer


def test_a_window_changes_something(bench, alone):  # noqa: F811
    assert alone != answers(bench.engine(), ask(bench.prompt, sampling=GREEDY))["r", 0]


def test_a_window_that_reaches_everything_loses_nothing(bench):  # noqa: F811
    """The sums are taken in another order (sinks apart), so bits may differ, but no token does."""
    whole = answers(bench.engine(), ask(bench.prompt, sampling=GREEDY))["r", 0]
    engine = bench.engine(kv_retention="window:sinks=4,window=2048")
    found = answers(engine, ask(bench.prompt, sampling=GREEDY))["r", 0]
    assert [token for token, _ in found] == [token for token, _ in whole]
    assert all(group.num_trimmed == 0 for group in engine.stats().groups)


@pytest.mark.parametrize(
    "flags",
    [
        {"max_num_batched_tokens": 1, "max_num_seqs": 1},
        {"max_num_batched_tokens": 7, "max_num_seqs": 1},
        {"max_num_batched_tokens": 64},
        {"threads": 1},
        {"enable_prefix_caching": False},
        {"scheduling": "static"},
    ],
    ids=str,
)
def test_whatever_the_chunks_and_threads(bench, mixture, alone, flags):  # noqa: F811
    assert answers(engine_of(bench, mixture, **flags), ask(bench.prompt, sampling=GREEDY))["r", 0] == alone


def test_in_a_batch_and_after_a_hit(bench, mixture, alone):  # noqa: F811
    engine = engine_of(bench, mixture)
    others = [ask(prompt, f"other{i}", GREEDY) for i, prompt in enumerate(bench.others[:6])]
    assert answers(engine, *others[:3], ask(bench.prompt, sampling=GREEDY), *others[3:])["r", 0] == alone
    assert answers(engine, ask(bench.prompt, "hit", GREEDY))["hit", 0] == alone
    assert engine.stats().num_prefix_hits >= len(bench.prompt) // 16 * 16 - 16


def test_the_next_turn_hits_the_last_and_says_the_same(bench, mixture):  # noqa: F811
    engine = engine_of(bench, mixture)
    first = answers(engine, ask(bench.prompt, "first", GREEDY))["first", 0]
    longer = (*bench.prompt, *(token for token, _ in first), *bench.others[0][:20])
    cold = answers(engine_of(bench, mixture), ask(longer, sampling=GREEDY))["r", 0]
    assert answers(engine, ask(longer, sampling=GREEDY))["r", 0] == cold
    # All whole blocks of what the first turn computed.
    assert engine.stats().num_prefix_hits == (len(bench.prompt) + len(first) - 1) // 16 * 16


def test_siblings_fork_after_the_prompt(bench, mixture, alone):  # noqa: F811
    found = answers(engine_of(bench, mixture), ask(bench.prompt, sampling=replace(GREEDY, n=3)))
    assert [found["r", index] for index in range(3)] == [alone] * 3


def test_after_preemption(bench, mixture, alone):  # noqa: F811
    """The pool holds one long sequence and a little: whoever comes later is pushed out and computed again."""
    flags = {"max_model_len": 320, "max_num_batched_tokens": 64, "max_num_seqs": 4}
    layout = engine_of(bench, mixture, **flags).layout
    scarce = max(range(len(layout.groups)), key=lambda g: layout.groups[g].max_blocks(320, 64))
    needs = [spec.max_blocks(320, 64) + (0 if g == scarce else 16) for g, spec in enumerate(layout.groups)]
    if len(needs) == 1:
        needs[0] += 6
    given, alter_layout = MIXTURES[mixture]
    parts = build(
        bench.loaded,
        make_engine_config(**{"kv_cache_memory": "64MiB", **given, **flags}),
        available_memory(),
        alter_layout=alter_layout,
    )
    # As many blocks as the test wants of each group, whatever the split would be.
    parts.manager = KVManager(replace(parts.manager.config, num_blocks=tuple(needs)))
    engine = Engine(parts)
    long = replace(GREEDY, max_tokens=90)
    earlier = [ask((11 + i, *bench.prompt[1:30]), f"earlier{i}", long) for i in range(3)]
    found = answers(engine, *earlier, ask(bench.prompt, sampling=GREEDY))
    assert found["r", 0] == alone
    assert engine.stats().num_preemptions > 0
