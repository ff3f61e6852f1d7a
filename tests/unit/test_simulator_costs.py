"""Step costs: what is counted in a plan, the roofline against the planner's, the fit, the probe, the file."""

import json
import random
from dataclasses import replace

import pytest
from kv_setup import make_manager, make_request, make_scheduler

from kvasir.core.clock import VirtualClock
from kvasir.core.errors import ConfigError
from kvasir.core.step import StepPlan, StepRow
from kvasir.hardware.cards import find_card
from kvasir.kv.retention import FULL, sliding, windowed
from kvasir.kv.split import GroupDemand, split_pool
from kvasir.planner.kv_groups import StoreFormat, kv_groups
from kvasir.planner.sources import find_model_card
from kvasir.planner.speed import GPU_SERVER, SpeedModel
from kvasir.planner.weight_formats import find_weight_format
from kvasir.scheduling.config import SchedulerConfig
from kvasir.scheduling.scheduler import Scheduler
from kvasir.simulator.calibration import CalibrationError, Observation, fit_costs
from kvasir.simulator.cost_executor import CostExecutor
from kvasir.simulator.cost_file import CostFile, ProbedDeployment, read_cost_file
from kvasir.simulator.deployment import device_cost, pool_blocks
from kvasir.simulator.engine_probe import probe_engine
from kvasir.simulator.least_squares import fit_nonnegative
from kvasir.simulator.probe_loads import FULL_PROBE, SINGLE_STREAM_PROBE, ProbeLoad
from kvasir.simulator.step_cost import FittedStepCost, RooflineStepCost
from kvasir.simulator.step_load import StepLoad, StepMeter

GIB = 1 << 30
TRUE = FittedStepCost(per_step_s=8e-3, per_token_s=2e-4, per_sequence_s=5e-5, per_pair_s=4e-8, per_read_s=1e-6)


def row(number, position, num_new, samples):
    return StepRow(number, position, (0,) * num_new, (), (number,) if samples else ())


def plan(*rows):
    """Rows as (position, new tokens, whether it draws)."""
    return StepPlan(step_id=1, rows=tuple(row(number, *values) for number, values in enumerate(rows)))


def test_a_step_is_measured_by_hand():
    load = StepMeter().measure(plan((100, 1, True), (0, 3, False), (10, 2, True)))
    assert load == StepLoad(
        num_tokens=6,
        num_sequences=3,
        num_samples=2,
        num_decodes=1,
        pairs=(101 + (1 + 2 + 3) + (11 + 12),),
        reads=(101 + 3 + 12,),
    )


def test_a_window_bounds_what_a_step_sees():
    load = StepMeter((FULL, sliding(4))).measure(plan((100, 1, True), (2, 4, True)))
    assert load.pairs == (101 + 3 + 4 + 5 + 6, 4 + 3 + 4 + 4 + 4)
    assert load.reads == (101 + 6, 4 + 6)
    assert load.num_decodes == 1


def test_fitted_costs_add_up():
    load = StepLoad(10, 3, 2, 1, (1000,), (400,))
    assert TRUE.step_s(load) == pytest.approx(8e-3 + 10 * 2e-4 + 3 * 5e-5 + 1000 * 4e-8 + 400 * 1e-6)


def device(model, tp=1, weights="bf16", card="H100-SXM", block_size=16, retention=FULL) -> RooflineStepCost:
    shape = find_model_card(model)
    assert shape is not None
    form = StoreFormat(block_size=block_size, tensor_parallel=tp, retention=retention)
    return device_cost(shape, find_weight_format(weights), form, find_card(card), GPU_SERVER)


@pytest.mark.parametrize(
    ("model", "tp", "weights"),
    [("llama-3.1-8b", 1, "bf16"), ("llama-3.1-70b", 4, "fp8"), ("gemma-3-27b", 1, "bf16"), ("deepseek-v3", 8, "fp8")],
)
@pytest.mark.parametrize(("batch", "context"), [(1, 100), (16, 3000), (64, 20_000)])
def test_decode_steps_cost_what_the_planner_says(model, tp, weights, batch, context):
    cost = device(model, tp, weights)
    planned = SpeedModel.of(cost.shape, cost.weights, cost.form, find_card("H100-SXM"), GPU_SERVER).decode_step_s(
        batch, context
    )
    step = plan(*[(context, 1, True)] * batch)
    assert cost.step_s(StepMeter(cost.retentions).measure(step)) == pytest.approx(planned, rel=0.02)


@pytest.mark.parametrize(
    "cost", [TRUE, device("llama-3.1-8b"), device("llama-3.1-70b", tp=8)], ids=["fitted", "tp1", "tp8"]
)
def test_foreseen_decodes_cost_exactly_what_single_ones_do(cost):
    for num, keys in ((1, 5), (17, 12_345), (64, 900_001)):
        assert cost.decoder(num)(keys) == cost.step_s(StepLoad(num, num, num, num, (keys,), (keys,)))


def test_prefill_is_ruled_by_arithmetic_and_logits_of_the_last_token_only():
    cost = device("llama-3.1-8b")
    step = cost.step_s(StepMeter().measure(plan((0, 8192, True)))) - GPU_SERVER.step_overhead_s
    head = cost.shape.head_parameters
    linear = 2 * (cost.shape.num_active_parameters - head) * 8192 + 2 * head
    attention = 8192 * 8193 / 2 * 2 * sum(layer.query_elements for layer in cost.shape.layers)
    card = find_card("H100-SXM")
    assert step == pytest.approx((linear + attention) / (card.bf16_flops * GPU_SERVER.flops_efficiency))


def test_a_pool_is_what_the_bytes_make():
    cost = device("llama-3.1-8b", block_size=512)
    block = sum(group.block_bytes for group in kv_groups(cost.shape, cost.form))
    scheduler = SchedulerConfig(max_num_batched_tokens=8192)
    assert pool_blocks(cost, 57 * block - 1, 8192, scheduler) == (56,)
    with pytest.raises(ConfigError, match="hold no sequence of 131,072 tokens"):
        pool_blocks(cost, 10 * GIB, 131_072, scheduler)


def test_a_hybrid_pool_is_split_as_our_engine_splits_it():
    cost = device("gemma-3-27b")
    scheduler = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=16)
    sizes = [
        sum(group.block_bytes for group in kv_groups(cost.shape, cost.form) if group.retention == rule)
        for rule in cost.retentions
    ]
    demands = [GroupDemand(size, 16, rule) for size, rule in zip(sizes, cost.retentions, strict=True)]
    blocks = pool_blocks(cost, 40 * GIB, 32_768, scheduler)
    limits = {"max_model_len": 32_768, "chunk_tokens": 2048, "max_num_seqs": 16}
    assert blocks == split_pool(demands, 40 * GIB, **limits)
    assert sum(size * count for size, count in zip(sizes, blocks, strict=True)) > 40 * GIB - max(sizes)


def test_a_rule_of_ours_changes_what_a_device_reads_and_holds():
    rule = windowed(sinks=4, window=1024).rounded(16)
    cost, full = device("llama-3.1-8b", retention=rule), device("llama-3.1-8b")
    assert cost.retentions == (rule,)
    step = plan((20_000, 1, True))
    load = StepMeter(cost.retentions).measure(step)
    assert load.reads == load.pairs == (16 + 1024 + 20_000 % 16 + 1,)
    assert cost.step_s(load) < full.step_s(StepMeter(full.retentions).measure(step))
    fitted = replace(TRUE, retention=rule)
    assert fitted.step_s(load) == TRUE.step_s(load)
    assert FittedStepCost.from_json(fitted.to_json()) == TRUE


def test_the_executor_reports_what_it_costs():
    seen = []
    executor = CostExecutor(TRUE, lambda load, seconds: seen.append((load.num_tokens, seconds)))
    manager = make_manager()
    scheduler: Scheduler = make_scheduler(manager)
    scheduler.add(make_request("a", range(40), max_tokens=3, ignore_eos=True))
    clock = VirtualClock()
    while scheduler.has_work:
        step = scheduler.schedule()
        assert step is not None
        result = executor.execute(step)
        clock.advance(result.duration_s)
        scheduler.apply(result)
    assert [num for num, _ in seen] == [40, 1, 1]
    assert clock.now_s() == pytest.approx(sum(seconds for _, seconds in seen))


# ---- fitting


def test_nonnegative_least_squares():
    rows = [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    assert fit_nonnegative(rows, [2.0, 3.0, 5.0]) == pytest.approx([2.0, 3.0])
    assert fit_nonnegative(rows, [2.0, -3.0, 1.0]) == pytest.approx([1.5, 0.0])  # the second would be below 0
    assert fit_nonnegative([(1.0, 2.0), (2.0, 4.0)], [3.0, 6.0]) in ([3.0, 0.0], [0.0, 1.5])  # not told apart


def test_nonnegative_least_squares_agrees_with_a_search():
    rng = random.Random(4)
    for _ in range(20):
        rows = [[rng.uniform(0, 1) for _ in range(3)] for _ in range(12)]
        values = [rng.uniform(-0.5, 1) for _ in rows]

        def loss(c, rows=rows, values=values):
            return sum(
                (sum(a * b for a, b in zip(row, c, strict=True)) - v) ** 2 for row, v in zip(rows, values, strict=True)
            )

        best = fit_nonnegative(rows, values)
        assert min(best) >= 0
        for _ in range(200):
            other = [max(0.0, c + rng.gauss(0, 0.05)) for c in best]
            assert loss(best) <= loss(other) + 1e-9


def synthetic_probe(loads, seed=1, noise=0.02):
    """What a probe of an engine with costs ``TRUE`` would measure, with noise and a few interrupted steps."""
    rng = random.Random(seed)
    observations = []
    for load in loads:
        steps = (
            [plan((0, load.num_prompt, True))]
            if load.num_prompt <= 512
            else [
                plan((start, min(512, load.num_prompt - start), start + 512 >= load.num_prompt))
                for start in range(0, load.num_prompt, 512)
            ]
        )
        steps += [plan(*[(load.num_prompt + i, 1, True)] * load.num_sequences) for i in range(load.num_output)]
        for step in steps:
            measured = StepMeter().measure(step)
            seconds = TRUE.step_s(measured) * (1 + rng.gauss(0, noise)) * (5 if rng.random() < 0.03 else 1)
            observations.append(Observation.of_step(load.name, measured, seconds))
    return observations  # fmt: skip


def test_constants_are_found_again_in_spite_of_noise_and_interruptions():
    fit = fit_costs(synthetic_probe(FULL_PROBE))
    assert fit.error < 0.03 and fit.num_left_out > 0
    for load in (
        StepLoad(1, 1, 1, 1, (200,), (200,)),
        StepLoad(512, 1, 0, 0, (900_000,), (2048,)),
        StepLoad(32, 32, 32, 32, (32_000,), (32_000,)),
        StepLoad(300, 20, 4, 19, (50_000,), (20_000,)),
    ):
        assert fit.cost.step_s(load) == pytest.approx(TRUE.step_s(load), rel=0.06)


def test_single_streams_alone_foretell_batches_when_sequences_cost_little():
    fit = fit_costs(synthetic_probe(SINGLE_STREAM_PROBE))
    batch = StepLoad(16, 16, 16, 16, (16 * 600,), (16 * 600,))
    assert fit.cost.step_s(batch) == pytest.approx(TRUE.step_s(batch), rel=0.08)


def test_too_few_steps_are_no_calibration():
    with pytest.raises(CalibrationError, match="3 timed steps"):
        fit_costs(synthetic_probe(FULL_PROBE)[:3])


class SlowEngine:
    """The real scheduler and cache behind the engine's face; steps take no time worth speaking of."""

    max_model_len = 256

    def __init__(self):
        self.scheduler = make_scheduler(make_manager(num_blocks=64))
        self.executor = CostExecutor(TRUE)
        self.resets = 0

    @property
    def has_work(self):
        return self.scheduler.has_work

    def add_request(self, request):
        self.scheduler.add(request)

    def step(self):
        step = self.scheduler.schedule()
        assert step is not None
        return self.scheduler.apply(self.executor.execute(step))

    def reset_prefix_cache(self):
        self.resets += 1
        return self.scheduler.manager.reset_prefix_cache()


def test_a_probe_plays_every_load_once_and_gives_the_executor_back():
    engine = SlowEngine()
    inner = engine.executor
    loads = (
        ProbeLoad(num_sequences=1, num_prompt=1000, num_output=5),
        ProbeLoad(num_sequences=3, num_prompt=20, num_output=4),
    )
    told = []
    observations = probe_engine(engine, loads, seconds=0.0, progress=lambda stage, share: told.append(share))
    assert engine.executor is inner and not engine.has_work
    cut = [o for o in observations if o.source == "1 x (250 + 5)"]
    assert [o.num_tokens for o in cut] == [64, 64, 64, 58, 1, 1, 1, 1]  # cut to the context, in steps of 64
    assert [o.num_sequences for o in observations if o.source == "3 x (20 + 4)"][-1] == 3
    assert all(o.seconds > 0 for o in observations) and told[-1] == 1.0
    assert engine.resets >= 3  # no prompt is found in the cache


# ---- the file


def cost_file() -> CostFile:
    return CostFile.of(
        fit_costs(synthetic_probe(FULL_PROBE)),
        ProbedDeployment(
            model="demo",
            machine="a box",
            max_model_len=8192,
            max_num_batched_tokens=512,
            max_num_seqs=64,
            block_size=16,
            num_blocks=(2048,),
        ),
    )


def test_step_costs_survive_the_file(tmp_path):
    file = cost_file()
    file.write(tmp_path / "new" / "costs.json")
    assert read_cost_file(tmp_path / "new" / "costs.json") == file


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda v: v.pop("kvasir_step_costs"), "holds no step costs"),
        (lambda v: v["constants"].update(per_step_s=-1), "per_step_s = -1"),
        (lambda v: v["constants"].pop("per_read_s"), "per_read_s = None"),
        (lambda v: v["deployment"].pop("model"), "damaged"),
        (lambda v: v.pop("fit"), "damaged"),
    ],
)
def test_damaged_step_costs_are_refused(tmp_path, damage, words):
    values = cost_file().to_json()
    damage(values)
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=words):
        read_cost_file(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_cost_file(tmp_path / "none.json")
