"""Reports by hand: statistics, money, tables, pages, Chrome trace."""

import json
from collections import Counter
from itertools import pairwise

import pytest

from kvasir.report.page import Page
from kvasir.scheduling.config import SchedulerConfig
from kvasir.simulator.cache_replay import hit_curve
from kvasir.simulator.capacity import CapacityQuestion, find_capacity
from kvasir.simulator.chrome_trace import ChromeTrace
from kvasir.simulator.eviction import EvictionPolicy
from kvasir.simulator.hit_table import hit_table
from kvasir.simulator.outcome import RequestOutcome, SimulationResult
from kvasir.simulator.pages import alerts_of, capacity_page, hits_page, run_page, sweep_page
from kvasir.simulator.recorder import Recorder
from kvasir.simulator.report import Money, make_report, pooled
from kvasir.simulator.report_tables import capacity_table, latency_table, seconds, summary_table, sweep_table
from kvasir.simulator.routing import FleetShape, Routing
from kvasir.simulator.simulate import SimulationSetup, simulate
from kvasir.simulator.step_cost import FittedStepCost
from kvasir.simulator.step_load import StepLoad
from kvasir.simulator.sweep import Axis, Scenario, run_sweep
from kvasir.workload.latency import Slo
from kvasir.workload.traces.trace import Trace, TraceRequest

COST = FittedStepCost(per_step_s=0.01, per_token_s=1e-4, per_sequence_s=1e-4, per_pair_s=1e-8, per_read_s=1e-7)


def outcome(name, ttft_s, e2e_s, prompt=100, cached=0, output=11, arrival_s=0.0):
    return RequestOutcome(name, 0, arrival_s, 0.0, ttft_s, e2e_s, prompt, cached, output, 0)


def small_trace(count=40, gap_s=0.05, spread=3):
    requests = tuple(
        TraceRequest(
            request_id=f"r{i}",
            arrival_s=gap_s * i,
            num_prompt_tokens=48 + i % 5,
            num_output_tokens=4 + i % 7,
            hash_ids=(i % spread, 100 + i % (2 * spread), 200 + i),
        )
        for i in range(count)
    )
    return Trace(name="small", requests=requests, hash_block_size=16)


def setup_of(**changes):
    settings = {
        "cost": COST,
        "num_blocks": (60,),
        "max_model_len": 256,
        "scheduler": SchedulerConfig(max_num_batched_tokens=128, max_num_seqs=8),
    }
    return SimulationSetup(**(settings | changes))


def test_hit_rates_and_goodput_by_hand():
    result = SimulationResult(
        duration_s=10.0,
        outcomes=[
            outcome("late", 0.1, 1.1, cached=80, arrival_s=5.0),
            outcome("early", 0.5, 0.7, cached=0, arrival_s=1.0),
        ],
    )
    report = make_report(result, Slo(ttft_s=0.2))
    assert (report.hit_rate, report.hit_rate_last_half) == (0.4, 0.8)
    assert (report.num_good, report.goodput, report.good_fraction) == (1, 0.1, 0.5)
    assert report.ttft is not None and report.ttft.mean == pytest.approx(0.3)
    assert report.tpot is not None and report.tpot.max == pytest.approx(0.1)
    assert (report.request_rate, report.output_rate) == (0.2, 2.2)


def test_money_by_hand():
    result = SimulationResult(
        duration_s=1800.0, outcomes=[outcome("a", 1, 2, prompt=900_000, cached=400_000, output=100_000)]
    )
    money = Money.of(result, price_per_hour=4.0)
    assert money.total == 2.0
    assert money.per_million_output == pytest.approx(20.0)
    assert money.per_million_computed_input == pytest.approx(4.0)
    assert money.per_million_tokens == pytest.approx(2.0)
    data = make_report(result, price_per_hour=4.0).to_json()["money"]
    assert data["usd_per_million_output_tokens"] == pytest.approx(20.0)
    assert data["hit_rate_used"] == pytest.approx(4 / 9)


def test_pooled_gaps_by_hand():
    found = pooled(Counter({10_000: 98, 1_000_000: 2}))
    assert found is not None
    assert found.mean == pytest.approx(0.0298)
    assert (found.percentiles[50.0], found.percentiles[95.0], found.percentiles[99.0]) == (0.01, 0.01, 1.0)
    assert pooled(Counter()) is None


def test_json_has_the_names_of_vllm_bench_serve():
    data = make_report(simulate(small_trace(), setup_of()), Slo(ttft_s=1.0)).to_json()
    wanted = {"duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
              "request_goodput", "output_throughput", "total_token_throughput", "mean_ttft_ms", "median_tpot_ms",
              "p99_itl_ms", "std_e2el_ms"}  # fmt: skip
    assert wanted <= data.keys()
    assert data["completed"] == 40 and json.dumps(data)


def test_gaps_between_tokens_agree_with_time_per_token():
    """Without preemption the gaps of a request are the steps it waited for, so means over all tokens agree."""
    result = simulate(small_trace(gap_s=0.3), setup_of(num_blocks=(500,)))
    report = make_report(result)
    tokens = [(o.e2e_s - o.ttft_s, o.num_output_tokens - 1) for o in result.outcomes]
    assert report.itl is not None
    assert report.itl.mean == pytest.approx(sum(s for s, _ in tokens) / sum(n for _, n in tokens), abs=1e-6)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0000123, "12.3 us"), (0.01234, "12.3 ms"), (1.5, "1.5 s"), (2345.0, "2,345 s"), (0.0, "0 ms")],
)
def test_seconds_are_written_in_the_unit_that_suits(value, text):
    assert seconds(value) == text


def html_of(page: Page) -> str:
    pytest.importorskip("plotly")
    return page.html()


def test_a_run_as_tables_and_page():
    fleet = FleetShape(num_instances=2, routing=Routing.ROUND_ROBIN)
    result = simulate(small_trace(), setup_of(fleet=fleet))
    report = make_report(result, Slo(ttft_s=0.05), price_per_hour=5.0)
    assert latency_table(report).rows[0][0] == "time to first token"
    summary = dict(summary_table(report).rows)
    assert summary["answered"].startswith("40 of 40 requests")
    assert "goodput (ttft:50)" in summary and "dollars at 5.00/h" in summary
    html = html_of(run_page(result, report, "a subtitle", ["a note"]))
    for text in ("a subtitle", "a note", "Blocks over time", "Gap between tokens", "Time spent computing", "Plotly"):
        assert text in html


def test_an_overloaded_run_says_so():
    setup = setup_of(scheduler=SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=1, max_waiting=20))
    report = make_report(simulate(small_trace(gap_s=0.0), setup))
    alerts = alerts_of(report)
    assert any("refused (20 overloaded)" in alert for alert in alerts)
    assert any("cannot keep up" in alert for alert in alerts)
    assert alerts_of(make_report(simulate(small_trace(count=4, gap_s=9.0), setup_of()))) == []


def long_prompts(count=30):
    """Prompts of 4,000 tokens while others write long answers."""
    requests = tuple(
        TraceRequest(
            request_id=f"r{i}",
            arrival_s=0.6 * i,
            num_prompt_tokens=4000 if i % 3 else 100,
            num_output_tokens=30,
        )
        for i in range(count)
    )
    return Trace(name="long", requests=requests)


def test_chunks_bound_the_gap_between_tokens():
    """No token waits longer than a full step of the budget (Sarathi-Serve, OSDI'24); a whole prompt stalls all."""
    budgets = (128, 512, 8192)
    reports = []
    for budget in budgets:
        scheduler = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=16)
        setup = setup_of(num_blocks=(4000,), max_model_len=8192, scheduler=scheduler)
        reports.append(make_report(simulate(long_prompts(), setup)))
    worst = [report.itl.percentiles[99.0] for report in reports if report.itl is not None]
    assert worst == sorted(worst) and worst[2] > 2 * worst[0]
    for budget, gap_s in zip(budgets, worst, strict=True):
        keys = 16 * 4060 + budget
        full = StepLoad(budget, 16, 16, 15, (min(budget, 4000) * 4060 + keys,), (keys,))
        assert gap_s <= COST.step_s(full)


def test_a_pool_that_is_too_small_is_a_cliff():
    """Chats of growing length, more than the pool holds: hits fall and first tokens come later."""
    turns = [
        TraceRequest(
            request_id=f"c{chat}.{turn}",
            arrival_s=2.0 * (8 * turn + chat),
            num_prompt_tokens=16 * 12 * (turn + 1),
            num_output_tokens=8,
            hash_ids=tuple(1000 * chat + i for i in range(12 * (turn + 1))),
        )
        for turn in range(6)
        for chat in range(8)
    ]
    trace = Trace(name="chats", requests=tuple(turns), hash_block_size=16)
    enough, short = (
        make_report(simulate(trace, setup_of(num_blocks=(blocks,), max_model_len=2048))) for blocks in (700, 160)
    )
    assert enough.hit_rate > 0.6 > 2 * short.hit_rate
    assert enough.ttft is not None and short.ttft is not None
    assert short.ttft.mean > 2 * enough.ttft.mean


# ---- sweep


def test_a_sweep_plays_every_combination():
    trace = small_trace(count=120, gap_s=0.2, spread=15)
    scenario = Scenario(trace=trace, setup=setup_of(), price_per_instance=2.0)
    axes = [Axis.parse("kv-blocks=20,40,80"), Axis.parse("policy=lru,fifo")]
    told = []
    points = run_sweep(scenario, axes, Slo(ttft_s=0.1), lambda stage, share: told.append(stage))
    assert [point.values for point in points] == [
        (blocks, policy) for blocks in (20, 40, 80) for policy in (EvictionPolicy.LRU, EvictionPolicy.FIFO)
    ]
    lru = [p.report.hit_rate for p in points if p.values[1] is EvictionPolicy.LRU and p.report]
    assert lru == sorted(lru) and lru[0] < lru[-1]
    assert "1/6 kv-blocks 20, policy lru" in told
    table = sweep_table(axes, points)
    assert len(table.rows) == 6 and ">good" in table.columns and ">$/M output" in table.columns
    html = html_of(sweep_page(axes, points, "sub", []))
    assert "Sweep over kv-blocks, policy" in html and "policy fifo" in html


def test_a_combination_that_cannot_be_is_reported_not_fatal():
    scenario = Scenario(trace=small_trace(count=6), setup=setup_of())
    axes = [Axis.parse("instances=1,2"), Axis.parse("policy=belady")]
    one, two = run_sweep(scenario, axes, Slo())
    assert one.report is not None and two.report is None
    assert "belady" in (two.error or "")
    assert "belady" in sweep_table(axes, [one, two]).rows[1][2]


@pytest.mark.parametrize("setting", ["max-num-batched-tokens=32,64", "max-num-seqs=1,4", "routing=prefix,round-robin",
                                     "request-rate=1,50", "trace-speed=1,10", "max-concurrency=1,8"])  # fmt: skip
def test_every_setting_can_be_swept_and_matters(setting):
    fleet = FleetShape(num_instances=2)
    scenario = Scenario(trace=small_trace(gap_s=0.004), setup=setup_of(fleet=fleet))
    points = run_sweep(scenario, [Axis.parse(setting)], Slo())
    first, second = (point.report for point in points)
    assert first is not None and second is not None
    assert first.to_json() != second.to_json()


def test_pools_by_length_can_be_swept():
    setup = setup_of(fleet=FleetShape(num_instances=3, num_long=1, length_cut=50))
    axes = [Axis.parse("length-cut=49,51"), Axis.parse("long-instances=1,2")]
    points = run_sweep(Scenario(trace=small_trace(), setup=setup), axes, Slo())
    assert all(point.report is not None for point in points)


@pytest.mark.parametrize(
    "text", ["colour=1,2", "kv-blocks=", "kv-blocks=0,1", "policy=lru,best", "kv-blocks", "request-rate=-1"]
)
def test_unreadable_sweeps_are_refused(text):
    with pytest.raises(Exception, match="--sweep"):
        Axis.parse(text)


# ---- capacity


def test_capacity_is_where_the_objective_breaks():
    """A prompt takes 0.02 s alone, and one sequence runs at a time: the edge is near the service rate."""
    trace = Trace(
        name="even",
        requests=tuple(
            TraceRequest(request_id=str(i), arrival_s=float(i), num_prompt_tokens=99, num_output_tokens=1)
            for i in range(200)
        ),
    )
    setup = setup_of(scheduler=SchedulerConfig(max_num_batched_tokens=128, max_num_seqs=1))
    service_s = COST.step_s.__self__.per_step_s + 99e-4 + 1e-4 + 99 * 100 / 2 * 1e-8 + 99e-7
    question = CapacityQuestion(slo=Slo(ttft_s=1.5 * service_s), burstiness=float("inf"), tolerance=0.01)
    capacity = find_capacity(Scenario(trace=trace, setup=setup), question)
    assert capacity.rate == pytest.approx(1 / service_s, rel=0.03)
    assert capacity.best is not None and capacity.best.is_met
    rates = [probe.rate for probe in capacity.probes]
    assert rates == sorted(rates)
    table = capacity_table(capacity)
    assert {row[2] for row in table.rows} == {"meets", "too much"}
    assert "requests/s" in html_of(capacity_page(capacity, "sub", []))


def test_an_objective_nobody_can_meet():
    scenario = Scenario(trace=small_trace(count=5), setup=setup_of())
    capacity = find_capacity(scenario, CapacityQuestion(slo=Slo(ttft_s=1e-6)))
    assert capacity.rate == 0.0 and capacity.best is None
    assert "0 requests/s" in html_of(capacity_page(capacity, "sub", []))


@pytest.mark.parametrize("settings", [{"slo": Slo()}, {"slo": Slo(ttft_s=1), "attainment": 0.0}])
def test_questions_without_sense_are_refused(settings):
    with pytest.raises(Exception, match=r"--goodput|--attainment"):
        CapacityQuestion(**settings)


# ---- the rest


def test_hit_curves_as_table_and_page():
    runs = hit_curve(small_trace(), list(EvictionPolicy), [10, 40, None])
    table = hit_table(runs, 0.5)
    assert table.columns == (">blocks of 16", ">tokens", ">lru", ">fifo", ">belady")
    assert [row[0] for row in table.rows] == ["10", "40", "unlimited"]
    assert "unlimited cache" in html_of(hits_page(runs, 0.5, "sub"))
    alone = hit_table(hit_curve(small_trace(), [EvictionPolicy.LRU], [None]), 0.0)
    assert alone.columns[-1] == ">any policy" and len(alone.rows[0]) == 3


def test_the_chrome_trace_holds_every_step_and_request(tmp_path):
    chrome = ChromeTrace()
    fleet = FleetShape(num_instances=2, routing=Routing.ROUND_ROBIN)
    result = simulate(small_trace(count=10), setup_of(fleet=fleet), recorder=Recorder(chrome))
    chrome.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = [event for event in events if event.get("cat") == "step"]
    assert sum(event["args"]["steps"] for event in steps) == sum(one.num_steps for one in result.instances)
    assert any(" x " in event["name"] for event in steps), "runs are shown as runs"
    for pid in (0, 1):
        own = sorted((e["ts"], e["dur"]) for e in steps if e["pid"] == pid)
        assert all(ts + dur <= after + 0.2 for (ts, dur), (after, _) in pairwise(own))
    begins = Counter(event["id"] for event in events if event["ph"] == "b")
    ends = Counter(event["id"] for event in events if event["ph"] == "e")
    assert begins == ends == Counter({f"r{i}": 4 for i in range(10)})
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {"instance 0", "instance 1", "steps"}
    assert {event["name"] for event in events if event["ph"] == "C"} == {"blocks", "sequences"}


def test_a_chrome_trace_is_bounded_and_says_so(tmp_path):
    chrome = ChromeTrace(max_events=50)
    simulate(small_trace(), setup_of(), recorder=Recorder(chrome))
    chrome.write(tmp_path / "trace.json")
    data = json.loads((tmp_path / "trace.json").read_text())
    assert len(data["traceEvents"]) <= 55
    assert data["otherData"]["events_left_out"] == chrome.num_left_out > 0
