"""Law 1 with sparse reading: an answer depends on its tokens and on where its prompt ended, bit for bit."""

from dataclasses import replace

import pytest
from test_exactness_eviction import answers
from test_exactness_law import Bench, ask, bench  # noqa: F401  (bench is a fixture)

from kvasir.core.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=1)
FLAGS = {"kv_sparse_read": "blocks=5"}
BOTH = {**FLAGS, "kv_eviction": "keydiff:keep=0.6,sinks=4,recent=16"}


@pytest.fixture(scope="module", params=[FLAGS, BOTH], ids=["sparse", "sparse and evicting"])
def flags(request):
    return request.param


@pytest.fixture(scope="module")
def alone(bench: Bench, flags):  # noqa: F811
    return answers(bench.engine(**flags), ask(bench.prompt, sampling=GREEDY))["r", 0]


def test_enough_blocks_are_all_of_them_bit_for_bit(bench):  # noqa: F811
    off = answers(bench.engine(), ask(bench.prompt, sampling=GREEDY))
    assert answers(bench.engine(kv_sparse_read="blocks=64"), ask(bench.prompt, sampling=GREEDY)) == off


def test_reading_less_changes_something_after_the_prompt(bench):  # noqa: F811
    off = answers(bench.engine(), ask(bench.prompt, sampling=GREEDY))["r", 0]
    few = answers(bench.engine(**FLAGS), ask(bench.prompt, sampling=GREEDY))["r", 0]
    assert few[0] == off[0], "the prompt reads everything"
    assert few[1:] != off[1:]


@pytest.mark.parametrize(
    "others",
    [{"max_num_batched_tokens": 7, "max_num_seqs": 1}, {"threads": 1}, {"enable_prefix_caching": False}],
    ids=str,
)
def test_whatever_the_chunks_and_threads(bench, flags, alone, others):  # noqa: F811
    assert answers(bench.engine(**flags, **others), ask(bench.prompt, sampling=GREEDY))["r", 0] == alone


def test_in_a_batch_and_after_a_hit(bench, flags, alone):  # noqa: F811
    engine = bench.engine(**flags)
    others = [ask(prompt, f"other{i}", GREEDY) for i, prompt in enumerate(bench.others[:5])]
    assert answers(engine, *others[:3], ask(bench.prompt, sampling=GREEDY), *others[3:])["r", 0] == alone
    assert answers(engine, ask(bench.prompt, "hit", GREEDY))["hit", 0] == alone


def test_siblings(bench, flags, alone):  # noqa: F811
    found = answers(bench.engine(**flags), ask(bench.prompt, sampling=replace(GREEDY, n=2)))
    assert [found["r", index] for index in range(2)] == [alone] * 2


def test_after_preemption(bench, alone, flags):  # noqa: F811
    """What was generated is computed again in a chunk, and has to read as sparsely as the first time."""
    engine = bench.engine(**flags, kv_cache_memory=_pool(bench, 20), max_model_len=256)
    long = replace(GREEDY, max_tokens=120)
    earlier = [
        ask((11 + i, *bench.prompt[1:60]), f"earlier{i}", long) for i in range(3 if "kv_eviction" in flags else 1)
    ]
    found = answers(engine, *earlier, ask(bench.prompt, sampling=GREEDY))
    assert engine.stats().num_preemptions > 0
    assert found["r", 0] == alone


def _pool(around: Bench, num_blocks: int) -> int:
    (spec,) = around.engine(**FLAGS).layout.groups
    return spec.pool_bytes(num_blocks)


def test_the_next_turn_does_not_find_what_was_read_sparsely(bench, flags):  # noqa: F811
    engine = bench.engine(**flags)
    first = answers(engine, ask(bench.prompt, "first", GREEDY))["first", 0]
    longer = (*bench.prompt, *(token for token, _ in first), *bench.others[0][:20])
    cold = answers(bench.engine(**flags), ask(longer, "r", GREEDY))["r", 0]
    assert answers(engine, ask(longer, "r", GREEDY))["r", 0] == cold
