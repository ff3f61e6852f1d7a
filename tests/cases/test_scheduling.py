"""Faults of other servers in scheduling and prefix caching, on the control plane alone."""

from kv_setup import make_manager, make_request, make_sequence, run_to_computed
from modelled_executor import expected_tokens
from test_scheduler import Harness

from kvasir.core.errors import ContextLengthError
from kvasir.core.sequence import FinishReason
from kvasir.kv.hashing import root_key


def test_P3_values_from_different_sources_never_compare_equal():
    """An adapter called like somebody's salt must not open that salt's cache."""
    base = {"model_digest": "m", "layout_digest": "l"}
    keys = {
        root_key(**base),
        root_key(**base, salt="COLLIDE_SALT"),
        root_key(**base, adapter="COLLIDE_SALT"),
        root_key(**base, tenant="COLLIDE_SALT"),
        root_key(model_digest="mCOLLIDE_SALT", layout_digest="l"),
        root_key(model_digest="m", layout_digest="lCOLLIDE_SALT"),
        root_key(**base, tenant="COLLIDE", salt="_SALT"),
        root_key(**base, tenant="COLLIDE_", salt="SALT"),
    }
    assert len(keys) == 8


def test_P6_reuse_stops_at_the_first_difference_and_recomputes_the_rest():
    """Tokens in the middle were cut out: what follows sits at other positions and must not be reused."""
    manager = make_manager(num_blocks=64)
    a, b, c, d, e = (list(range(100 * i, 100 * i + 16)) for i in range(5))
    run_to_computed(manager, make_sequence(1, a + b + c + d + e + [1]))
    shortened = make_sequence(2, a + b + d + e + [1])
    assert manager.lookup(shortened).num_tokens == 32
    run = Harness(make_manager(num_blocks=64))
    for name, prompt in (("whole", a + b + c + d + e), ("cut", a + b + d + e)):
        run.scheduler.add(make_request(name, prompt))
        run.run()
        assert run.tokens(name) == expected_tokens(prompt, 0, 8)


def test_T1_reuse_up_to_the_last_whole_block_before_the_divergence():
    """Turn 2 renders the last words of turn 1 differently: 3,019 of 3,022 stored tokens are shared."""
    run = Harness(make_manager(num_blocks=600, max_model_len=4096, chunk=512))
    history = list(range(3022))
    run.scheduler.add(make_request("turn1", history, max_tokens=1))
    run.run()
    turn2 = [*history[:3019], *range(9000, 9023)]
    run.scheduler.add(make_request("turn2", turn2, max_tokens=1))
    run.run()
    assert run.finished("turn2").num_cached_tokens == 3019 // 16 * 16


def test_T3_short_prompts_are_served_while_a_huge_one_prefills():
    run = Harness(make_manager(num_blocks=9000, max_model_len=140_000, chunk=512))
    run.scheduler.add(make_request("huge", range(128_000), max_tokens=1))
    run.step()
    for i in range(3):
        run.scheduler.add(make_request(f"short{i}", range(200_000 + 1000 * i, 200_000 + 1000 * i + 300)))
    for _ in range(8):
        plan = run.scheduler.schedule()
        run.events.extend(run.scheduler.apply(_answer(plan)))
    first_tokens = {event.request_id for event in run.events if getattr(event, "token_ids", ())}
    assert first_tokens >= {"short0", "short1", "short2"}
    huge = run.scheduler.records["huge"].sequences[0]
    assert huge.num_computed_tokens >= 512 + 8 * 128, "the long prompt keeps its share"


def _answer(plan):
    """A result for plans too long to check slot by slot."""
    from kvasir.core.step import SampledToken, StepResult

    tokens = tuple(SampledToken(s, 5) for row in plan.rows for s in row.sample_for)
    return StepResult(step_id=plan.step_id, tokens=tokens)


def test_H1_a_prompt_that_can_never_fit_is_refused_and_the_next_one_runs():
    run = Harness(make_manager(num_blocks=16, max_model_len=256))
    try:
        run.scheduler.add(make_request("too long", range(1000)))
    except ContextLengthError as refusal:
        assert refusal.http_status == 400 and "1000" in str(refusal) and "256" in str(refusal)
    else:
        raise AssertionError("it was admitted")
    run.scheduler.add(make_request("small", range(10)))
    run.run()
    assert run.tokens("small") == expected_tokens(range(10), 0, 8)


def test_M3_only_the_request_that_does_not_fit_waits():
    """Four long generations in a pool that holds little more than one: all finish, none is aborted."""
    run = Harness(make_manager(num_blocks=20, max_model_len=300, chunk=64))
    for i in range(4):
        run.scheduler.add(make_request(f"r{i}", range(1000 * i, 1000 * i + 20), max_tokens=200))
    run.run()
    for i in range(4):
        assert run.finished(f"r{i}").finish_reason is FinishReason.LENGTH
        assert run.tokens(f"r{i}") == expected_tokens(range(1000 * i, 1000 * i + 20), 0, 200)
