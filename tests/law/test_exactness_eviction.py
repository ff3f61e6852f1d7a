"""Law 1 with eviction: what comes after a prompt depends on the tokens and on where the prompt ended, bit for bit."""

from dataclasses import replace

import pytest
from test_exactness_law import Bench, ask, bench, run  # noqa: F401  (bench is a fixture)

from kvasir.core.events import TokensEvent
from kvasir.core.sampling import SamplingParams
from kvasir.engine.engine import Engine

GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, logprobs=1)
KEYDIFF = "keydiff:keep=0.4,sinks=4,recent=16"
RULES = [KEYDIFF, "random:keep=0.4,sinks=4,recent=16,seed=3"]

Answer = list[tuple[int, float]]


def answers(engine: Engine, *requests) -> dict[tuple[str, int], Answer]:
    """Every token with its log-probability, which no two different caches share."""
    for request in requests:
        engine.add_request(request)
    found: dict[tuple[str, int], Answer] = {}
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokensEvent):
                pairs = zip(event.token_ids, (entry.logprob for entry in event.logprobs), strict=True)
                found.setdefault((event.request_id, event.index), []).extend(pairs)
    engine.audit()
    assert all(group.num_used == 0 for group in engine.stats().groups)
    return found


@pytest.fixture(scope="module", params=RULES)
def rule(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def alone(bench: Bench, rule: str) -> Answer:  # noqa: F811
    engine = bench.engine(kv_eviction=rule)
    answer = answers(engine, ask(bench.prompt, sampling=GREEDY))["r", 0]
    assert engine.stats().num_evicted_tokens == len(bench.prompt) - -(-4 * len(bench.prompt) // 10)
    return answer


def test_everything_kept_is_no_eviction_bit_for_bit(bench):  # noqa: F811
    off = answers(bench.engine(), ask(bench.prompt, sampling=GREEDY))
    for rule in ("keydiff:keep=1.0", "random:keep=1.0", "keydiff:keep=0.1,recent=4096"):
        engine = bench.engine(kv_eviction=rule)
        assert answers(engine, ask(bench.prompt, sampling=GREEDY)) == off
        assert engine.stats().num_evicted_tokens == 0


def test_an_eviction_changes_something(bench, alone):  # noqa: F811
    off = answers(bench.engine(), ask(bench.prompt, sampling=GREEDY))["r", 0]
    assert off[0] == alone[0], "the first token is drawn before anything goes"
    assert off[1:] != alone[1:]


@pytest.mark.parametrize(
    "flags",
    [
        {"max_num_batched_tokens": 7, "max_num_seqs": 1},
        {"block_size": 64},
        {"threads": 1},
        {"enable_prefix_caching": False},
        {"scheduling": "static"},
    ],
    ids=str,
)
def test_whatever_the_chunks_blocks_and_threads(bench, rule, alone, flags):  # noqa: F811
    assert answers(bench.engine(kv_eviction=rule, **flags), ask(bench.prompt, sampling=GREEDY))["r", 0] == alone


def test_in_a_batch_and_after_a_hit(bench, rule, alone):  # noqa: F811
    engine = bench.engine(kv_eviction=rule)
    others = [ask(prompt, f"other{i}", GREEDY) for i, prompt in enumerate(bench.others[:6])]
    assert answers(engine, *others[:3], ask(bench.prompt, sampling=GREEDY), *others[3:])["r", 0] == alone
    assert answers(engine, ask(bench.prompt, "hit", GREEDY))["hit", 0] == alone
    assert engine.stats().num_prefix_hits >= len(bench.prompt) // 16 * 16 - 16


def test_siblings_fork_from_what_is_left(bench, rule, alone):  # noqa: F811
    engine = bench.engine(kv_eviction=rule)
    found = answers(engine, ask(bench.prompt, sampling=replace(GREEDY, n=3)))
    assert [found["r", index] for index in range(3)] == [alone] * 3
    assert engine.stats().num_evicted_tokens == len(bench.prompt) - -(-4 * len(bench.prompt) // 10)


def test_after_preemption(bench, rule, alone):  # noqa: F811
    """Short prompts with long answers came first: once what is kept of this one is small they let it in, and as they
    grow they push it out again."""
    engine = bench.engine(kv_eviction=rule, kv_cache_memory=bench.pool_bytes(20), max_model_len=256)
    long = replace(GREEDY, max_tokens=120)
    earlier = [ask((11 + i, *bench.prompt[1:60]), f"earlier{i}", long) for i in range(3)]
    found = answers(engine, *earlier, ask(bench.prompt, sampling=GREEDY))
    assert engine.stats().num_preemptions > 0
    assert found["r", 0] == alone


def test_the_next_turn_of_a_chat_does_not_find_what_was_cut(bench, rule):  # noqa: F811
    """Its prompt holds the last answer's tokens, which were computed after an eviction; here they are to be whole."""
    engine = bench.engine(kv_eviction=rule)
    first = answers(engine, ask(bench.prompt, "first", GREEDY))["first", 0]
    longer = (*bench.prompt, *(token for token, _ in first), *bench.others[0][:20])
    cold = answers(bench.engine(kv_eviction=rule), ask(longer, "r", GREEDY))["r", 0]
    assert answers(engine, ask(longer, "r", GREEDY))["r", 0] == cold
