"""One truth: on the same arrivals and step times the simulator makes the very plans that the engine made."""

import random
import time

import pytest
from kv_setup import make_layout, make_request
from modelled_executor import VOCAB_SIZE, ModelledExecutor
from simulated_engine import TICK_S, EngineRun, replay

from kvasir.core.clock import VirtualClock
from kvasir.core.events import RequestFinishedEvent
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.engine.engine import Engine
from kvasir.engine.flags import make_engine_config
from kvasir.kv.eviction import parse_eviction
from kvasir.kv.manager import KVManager, KVManagerConfig
from kvasir.scheduling.config import SchedulerConfig
from kvasir.scheduling.scheduler import Scheduler
from kvasir.workload.prompts import make_token_ids


def modelled_run(seed: int, manager: KVManagerConfig, config: SchedulerConfig) -> tuple[EngineRun, Scheduler]:
    """The engine's loop with a model of a model: take in what has come, schedule, execute, apply."""
    rng = random.Random(seed)
    clock = VirtualClock()
    scheduler = Scheduler(config, KVManager(manager), clock)
    executor = ModelledExecutor(manager.layout, eviction=manager.eviction)
    run = EngineRun()
    waiting = []
    now_s = 0.0
    for number in range(30):
        now_s += rng.choice([0, 0, 3, 40]) * 4096 * TICK_S
        prompt = [7] * rng.choice([0, 16, 40]) + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 50))]
        settings = {"n": rng.choice([1, 1, 2]), "eos_token_ids": (0, 1), "ignore_eos": rng.random() < 0.5}
        waiting.append((now_s, make_request(f"r{number}", prompt, max_tokens=rng.randrange(1, 40), **settings)))
    run.arrivals = list(waiting)
    while waiting or scheduler.has_work:
        if not scheduler.has_work:
            clock.advance_to(max(clock.now_s(), waiting[0][0]))
        while waiting and waiting[0][0] <= clock.now_s():
            scheduler.add(waiting.pop(0)[1])
        plan = scheduler.schedule()
        assert plan is not None
        result = executor.execute(plan)
        duration_s = rng.randrange(1, 9) * 1024 * TICK_S
        clock.advance_to(clock.now_s() + duration_s)
        scheduler.apply(result)
        run.plans.append(plan)
        run.results.append(result)
        run.durations_s.append(duration_s)
    return run, scheduler


KINDS = {
    "full": ((None,), None),
    "hybrid": ((None, 24), None),
    "evicting": ((None,), parse_eviction("random:keep=0.5,sinks=2,recent=6")),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_plans_are_equal_step_by_step(seed, kind):
    windows, eviction = KINDS[kind]
    layout = make_layout(windows)
    manager = KVManagerConfig(
        layout=layout,
        num_blocks=(14,) * len(layout.groups),
        max_model_len=128,
        max_chunk_tokens=48,
        eviction=eviction,
    )
    config = SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=6)
    run, scheduler = modelled_run(seed, manager, config)
    plans, recorder = replay(run, manager, config)
    assert plans == run.plans
    assert len(recorder.result.outcomes) == 30
    assert recorder.result.num_preemptions == scheduler.stats.num_preemptions


def test_these_runs_have_preemptions_hits_and_queues():
    """Otherwise equality would say little."""
    manager = KVManagerConfig(layout=make_layout(), num_blocks=(14,), max_model_len=128, max_chunk_tokens=48)
    config = SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=6)
    schedulers = [modelled_run(seed, manager, config)[1] for seed in range(6)]
    assert sum(scheduler.stats.num_preemptions for scheduler in schedulers) > 5
    assert sum(scheduler.stats.num_prefix_hits for scheduler in schedulers) > 500


def test_another_step_time_gives_other_plans():
    manager = KVManagerConfig(layout=make_layout(), num_blocks=(14,), max_model_len=128, max_chunk_tokens=48)
    config = SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=6)
    run, _ = modelled_run(1, manager, config)
    first, _ = replay(run, manager, config)
    run.durations_s = [4 * duration_s for duration_s in run.durations_s]
    with pytest.raises((AssertionError, IndexError, KeyError)):  # results no longer answer the plans
        assert replay(run, manager, config)[0] == first


def quantised(seconds: float) -> float:
    return round(seconds / TICK_S) * TICK_S


def test_plans_of_the_real_engine_are_reproduced(demo_model):
    """The embedded model under a real clock: twelve requests that share a prefix, arriving while others run."""
    config = make_engine_config(
        kv_cache_memory="6MiB", max_model_len=256, max_num_seqs=4, max_num_batched_tokens=64, threads=1
    )
    engine = Engine.from_config(config)
    run = EngineRun()
    inner = engine.executor

    class Recording:
        def execute(self, plan):
            result = inner.execute(plan)
            run.plans.append(plan)
            run.results.append(result)
            return result

    engine.executor = Recording()
    shared = make_token_ids(40, 1, first_id=100, last_id=40_000)
    requests = [
        Request(
            request_id=f"r{i}",
            prompt_token_ids=shared + make_token_ids(12 + 9 * (i % 4), 50 + i, first_id=100, last_id=40_000),
            sampling=SamplingParams(temperature=0.0, max_tokens=6 + 3 * (i % 5), ignore_eos=True),
        )
        for i in range(12)
    ]
    finished: list[RequestFinishedEvent] = []
    start_s = time.perf_counter()
    now_s = 0.0
    while requests or engine.has_work:
        # Two at first, then one every second step: what a server takes in between steps.
        while requests and (len(run.plans) >= 2 * (12 - len(requests)) - 2 or not engine.has_work):
            run.arrivals.append((now_s, requests[0]))
            engine.add_request(requests.pop(0))
        finished += [event for event in engine.step() if isinstance(event, RequestFinishedEvent)]
        end_s = quantised(time.perf_counter() - start_s)
        run.durations_s.append(end_s - now_s)
        now_s = end_s
    manager, scheduler = engine.manager.config, engine.scheduler.config
    engine.audit()
    engine.close()
    assert any(event.num_cached_tokens for event in finished)

    plans, recorder = replay(run, manager, scheduler)
    assert plans == run.plans
    simulated = {outcome.request_id: outcome for outcome in recorder.result.outcomes}
    for event in finished:
        outcome = simulated[event.request_id]
        assert outcome.num_cached_tokens == event.num_cached_tokens
        assert outcome.e2e_s == pytest.approx(event.e2e_s, abs=0.02 + 0.1 * event.e2e_s)
