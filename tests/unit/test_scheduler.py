"""The scheduler on the modelled executor: order, fairness, forks, preemption, failure."""

import pytest
from kv_setup import make_manager, make_request, make_scheduler
from modelled_executor import ModelledExecutor, expected_tokens

from kvasir.core.errors import BadRequestError, ContextLengthError, InvariantViolation, OverloadedError
from kvasir.core.events import RequestFinishedEvent, TokensEvent
from kvasir.core.sequence import FinishReason
from kvasir.core.step import StepResult
from kvasir.kv.allocation import AllocationKind
from kvasir.kv.audit import audit
from kvasir.scheduling.budget import share_tokens
from kvasir.scheduling.config import BatchingMode, QueuePolicy


class Harness:
    def __init__(self, manager, fail_token=None, **settings):
        self.manager = manager
        self.scheduler = make_scheduler(manager, **settings)
        self.executor = ModelledExecutor(manager.config.layout, fail_token)
        self.events = []
        self.first_token_step: dict[str, int] = {}

    def step(self):
        plan = self.scheduler.schedule()
        if plan is None:
            return None
        events = self.scheduler.apply(self.executor.execute(plan))
        audit(self.manager)
        for event in events:
            if isinstance(event, TokensEvent) and event.token_ids:
                self.first_token_step.setdefault(event.request_id, plan.step_id)
        self.events.extend(events)
        return plan

    def run(self, limit=5000):
        for _ in range(limit):
            if self.step() is None:
                return
        raise AssertionError("the scheduler did not finish")

    def tokens(self, request_id, index=0):
        return [
            token
            for event in self.events
            if isinstance(event, TokensEvent) and (event.request_id, event.index) == (request_id, index)
            for token in event.token_ids
        ]

    def finished(self, request_id) -> RequestFinishedEvent:
        (event,) = [e for e in self.events if isinstance(e, RequestFinishedEvent) and e.request_id == request_id]
        return event


def test_shares_hand_out_everything_and_the_first_always_gets_some():
    assert share_tokens([1000, 10, 20], 100) == [70, 10, 20]
    assert share_tokens([1000, 90, 90], 100) == [25, 75, 0]
    assert share_tokens([5], 100) == [5]
    assert share_tokens([1000, 1000], 1) == [1, 0]
    assert share_tokens([1000, 1000], 100, max_share=30) == [30, 30]
    assert share_tokens([], 100) == []


def test_a_short_prompt_passes_a_long_one_that_is_being_computed():
    run = Harness(make_manager(num_blocks=200, max_model_len=2048, chunk=64))
    run.scheduler.add(make_request("long", range(1500)))
    run.step()
    run.scheduler.add(make_request("short", range(5000, 5040)))
    run.run()
    assert run.first_token_step["short"] <= 3
    # The long one keeps at least a quarter of every step: 1,500 tokens in at most 1,500 / 16 steps.
    assert run.first_token_step["long"] <= 94


def test_a_long_prompt_is_not_starved_by_a_stream_of_short_ones():
    run = Harness(make_manager(num_blocks=400, max_model_len=2048, chunk=64))
    run.scheduler.add(make_request("long", range(1000), max_tokens=2))
    for i in range(200):
        run.scheduler.add(make_request(f"short{i}", range(10_000 + 100 * i, 10_060 + 100 * i), max_tokens=1))
        run.step()
    assert "long" in run.first_token_step
    assert run.first_token_step["long"] <= 1000 // 16 + 2


def test_first_come_first_served_among_equals():
    run = Harness(make_manager(num_blocks=100, chunk=32))
    for i in range(6):
        run.scheduler.add(make_request(f"r{i}", range(1000 * i, 1000 * i + 60)))
    run.run()
    steps = [run.first_token_step[f"r{i}"] for i in range(6)]
    assert steps == sorted(steps)


def test_priority_runs_first_and_is_preempted_last():
    run = Harness(make_manager(num_blocks=12, max_model_len=160), policy=QueuePolicy.PRIORITY)
    run.scheduler.add(make_request("later", range(60), max_tokens=60, priority=5))
    run.step()
    run.scheduler.add(make_request("sooner", range(1000, 1060), max_tokens=60, priority=1))
    run.run()
    assert run.finished("sooner").num_preemptions == 0
    assert run.finished("later").num_preemptions > 0
    for name, start in (("later", 0), ("sooner", 1000)):
        assert run.tokens(name) == expected_tokens(range(start, start + 60), 0, 60)


def test_twins_wait_for_the_prefix_that_is_being_computed():
    run = Harness(make_manager(num_blocks=100, chunk=64))
    for i in range(4):
        run.scheduler.add(make_request(f"r{i}", [*range(160), 1000 + i]))
    run.run()
    computed = sum(plan.num_tokens for plan in run.executor.plans)
    # 161 tokens once, one token each for the twins, and the generated ones: nothing is computed twice.
    assert computed == 161 + 3 * 1 + 4 * 7
    assert [run.finished(f"r{i}").num_cached_tokens for i in range(4)] == [0, 160, 160, 160]


def test_twin_goes_on_alone_when_the_first_is_aborted():
    run = Harness(make_manager(num_blocks=100, chunk=64))
    run.scheduler.add(make_request("first", range(200)))
    run.scheduler.add(make_request("twin", range(200)))
    run.step()
    run.events.extend(run.scheduler.abort("first"))
    run.run()
    assert run.tokens("twin") == expected_tokens(range(200), 0, 8)
    assert run.finished("first").finish_reason is FinishReason.ABORT


def test_a_hit_that_is_evicted_in_the_same_step_is_not_used():
    """The candidate finds cached blocks; the running sequence, served first, takes the very same blocks."""
    run = Harness(make_manager(num_blocks=9, max_model_len=144, chunk=64))
    run.scheduler.add(make_request("old", range(48), max_tokens=1))
    run.run()
    run.scheduler.add(make_request("running", range(1000, 1090), max_tokens=30))
    run.step()
    run.step()
    run.scheduler.add(make_request("again", range(50), max_tokens=4))
    run.run()
    assert run.tokens("running") == expected_tokens(range(1000, 1090), 0, 30)
    assert run.tokens("again") == expected_tokens(range(50), 0, 4)


def test_parallel_samples_share_the_prompt_blocks():
    run = Harness(make_manager(num_blocks=40))
    run.scheduler.add(make_request("r", range(100), n=4, max_tokens=20))
    plan = run.step()
    plan = run.step()
    assert len(plan.rows[0].sample_for) == 4
    assert run.manager.pools[0].num_used == 7
    run.run()
    for index in range(4):
        assert run.tokens("r", index) == expected_tokens(range(100), index, 20)
    assert run.finished("r").num_output_tokens == 80


def test_preemption_is_invisible_in_the_tokens():
    run = Harness(make_manager(num_blocks=12, max_model_len=160))
    for i in range(4):
        run.scheduler.add(make_request(f"r{i}", range(1000 * i, 1000 * i + 30), max_tokens=80))
    run.run()
    assert run.scheduler.stats.num_preemptions > 0
    assert run.finished("r0").num_preemptions == 0, "the oldest always progresses"
    for i in range(4):
        assert run.tokens(f"r{i}") == expected_tokens(range(1000 * i, 1000 * i + 30), 0, 80)


def test_static_batch_waits_for_its_slowest_member():
    run = Harness(make_manager(num_blocks=100), batching=BatchingMode.STATIC, max_num_seqs=2)
    for name, max_tokens in (("a", 2), ("b", 30), ("c", 2)):
        run.scheduler.add(make_request(name, [ord(name)] * 5, max_tokens=max_tokens))
    run.run()
    assert run.first_token_step["a"] == run.first_token_step["b"] == 1
    assert run.first_token_step["c"] == 31


def test_static_batch_fills_over_several_steps_when_prompts_are_long():
    run = Harness(make_manager(num_blocks=100, chunk=64), batching=BatchingMode.STATIC, max_num_seqs=3)
    for i in range(3):
        run.scheduler.add(make_request(f"r{i}", range(1000 * i, 1000 * i + 60), max_tokens=40))
    run.run()
    assert max(run.first_token_step.values()) <= 4


def test_nan_logits_end_one_request_and_nobody_else():
    run = Harness(make_manager(), fail_token=expected_tokens(range(20), 0, 3)[2])
    run.scheduler.add(make_request("bad", range(20)))
    run.scheduler.add(make_request("good", range(500, 520), max_tokens=3))
    run.run()
    assert run.finished("bad").finish_reason is FinishReason.ERROR
    assert "not finite" in (run.finished("bad").error or "")
    good = expected_tokens(range(500, 520), 0, 3)
    assert run.tokens("good") == good[: len(run.tokens("good"))]
    assert all(pool.num_used == 0 for pool in run.manager.pools)


def test_refusals_change_nothing():
    run = Harness(make_manager(num_blocks=16, max_model_len=256), max_waiting=1)
    with pytest.raises(ContextLengthError, match=r"300 tokens.*at most 256"):
        run.scheduler.add(make_request("a", range(300)))
    with pytest.raises(ContextLengthError, match="together 258"):
        run.scheduler.add(make_request("b", range(250)))
    with pytest.raises(BadRequestError, match="no tokens"):
        run.scheduler.add(make_request("c", []))
    with pytest.raises(BadRequestError, match="n is 17"):
        run.scheduler.add(make_request("d", range(5), n=17))
    assert not run.scheduler.has_work and run.scheduler.schedule() is None
    run.scheduler.add(make_request("e", range(5)))
    with pytest.raises(OverloadedError, match="1 requests are waiting"):
        run.scheduler.add(make_request("f", range(5)))
    with pytest.raises(BadRequestError, match="'e' is running"):
        run.scheduler.add(make_request("e", range(5)))
    run.run()
    assert run.tokens("e") == expected_tokens(range(5), 0, 8)


def test_contiguous_refuses_parallel_samples_by_name():
    manager = make_manager(enable_prefix_caching=False, allocation=AllocationKind.CONTIGUOUS)
    with pytest.raises(BadRequestError, match="--kv-allocation contiguous"):
        make_scheduler(manager).add(make_request("r", range(5), n=2))


def test_a_result_must_answer_the_last_plan():
    run = Harness(make_manager())
    run.scheduler.add(make_request("r", range(5)))
    run.scheduler.schedule()
    with pytest.raises(InvariantViolation, match="before the last plan"):
        run.scheduler.schedule()
    with pytest.raises(InvariantViolation, match="does not answer"):
        run.scheduler.apply(StepResult(step_id=99, tokens=()))


def test_stop_string_ends_one_sibling_only():
    run = Harness(make_manager())
    run.scheduler.add(make_request("r", range(20), n=2, max_tokens=10))
    run.step()
    run.events.extend(run.scheduler.stop_sequence("r", 0))
    run.run()
    assert len(run.tokens("r", 0)) == 1
    assert run.tokens("r", 1) == expected_tokens(range(20), 1, 10)
    assert run.finished("r").num_output_tokens == 11
