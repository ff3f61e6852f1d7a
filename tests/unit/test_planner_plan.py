"""Whole plans: capacity, devices, dollars, traps, commands, and the three ways they are shown."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvasir.core.errors import ConfigError
from kvasir.hardware.cards import device_cards, find_card, with_price
from kvasir.kv.format_spec import KVDtype
from kvasir.planner.context_table import CONTEXTS
from kvasir.planner.device_search import device_set, runs_on, search_devices
from kvasir.planner.engines import EngineName
from kvasir.planner.instance import plan_instance
from kvasir.planner.kv_groups import StoreDtype
from kvasir.planner.lengths import parse_lengths
from kvasir.planner.plan import Plan, make_plan
from kvasir.planner.report_html import plan_html
from kvasir.planner.report_json import plan_json
from kvasir.planner.report_tables import plan_tables
from kvasir.planner.request import EngineSettings, Load, PlanRequest, weight_format_of
from kvasir.planner.sources import find_model_card
from kvasir.planner.startup_log import read_startup_log
from kvasir.planner.traps import Trap
from kvasir.planner.weight_formats import find_weight_format

GIB = 1 << 30
SOME_CARDS = [find_card(name) for name in ("L4", "A100", "H200", "RTX-4090", "M2-Ultra-192", "GB10", "EPYC-9654")]


def request(name: str = "llama-3.1-8b", engine: EngineName = EngineName.VLLM, **changes: Any) -> PlanRequest:
    """``changes`` of the load, the settings, or the request itself, by their names."""
    shape = find_model_card(name)
    assert shape is not None
    load = Load(users=32, prompts=parse_lengths("lognormal:800,4000"), outputs=parse_lengths("lognormal:250,900"))
    settings = EngineSettings(engine=engine, max_model_len=min(shape.max_context, 32_768))
    found = PlanRequest(
        shape=shape,
        weights=weight_format_of(shape),
        k_dtype=KVDtype.BF16,
        v_dtype=KVDtype.BF16,
        load=load,
        settings=settings,
    )
    for part in ("load", "settings"):
        value = getattr(found, part)
        known = {key: changes.pop(key) for key in list(changes) if hasattr(value, key)}
        found = replace(found, **{part: replace(value, **known)})
    return replace(found, **changes)


def planned(asked: PlanRequest, *cards: str) -> Plan:
    return make_plan(asked, [find_card(name) for name in cards], [])


def traps(plan: Plan) -> set[Trap]:
    return {trap for trap, _ in plan.traps}


def test_the_budget_adds_up():
    for engine in (EngineName.VLLM, EngineName.SGLANG):
        budget = plan_instance(request(engine=engine), find_card("A100"), 1).budget
        assert budget.usable_bytes == budget.weight_bytes + budget.overhead.expected + budget.kv_expected
        assert budget.kv_low < budget.kv_expected < budget.kv_high
        assert budget.usable_bytes < budget.total_bytes == find_card("A100").memory_bytes


def test_a_real_card_that_others_over_predict_by_71_percent():
    """Llama-3.1-8B on a 24 GB workstation card: the log says 5.29 GiB and 43,296 tokens."""
    card = replace(find_card("RTX-3090"), name="A5000", memory_bytes=int(23.57 * GIB))
    instance = plan_instance(request(version="0.8 (V0)", max_num_batched_tokens=2048, max_model_len=2048), card, 1)
    assert instance.pool.printed_tokens == pytest.approx(43_296, rel=0.08)


def test_a_log_replaces_the_estimate_and_the_safety_factor():
    text = (
        "total_gpu_memory (79.15GiB) x gpu_memory_utilization (0.90) = 71.24GiB\n"
        "model weights take 14.99GiB; non_torch_memory takes 0.35GiB; PyTorch activation peak memory takes 2.07GiB; "
        "the rest of the memory reserved for KV Cache is 53.83GiB.\n# GPU blocks: 27560, # CPU blocks: 2048\n"
    )
    without, plan = planned(request(), "A100"), planned(request(log=read_startup_log(text)), "A100")
    budget = plan.chosen.instance.budget
    assert budget.overhead.expected == round(0.35 * GIB) + round(2.07 * GIB)
    assert budget.kv_low == budget.kv_expected == budget.kv_high
    assert (without.chosen.capacity.safety, plan.chosen.capacity.safety) == (0.7, 1.0)
    assert plan.chosen.capacity.planned > without.chosen.capacity.planned


def test_a_log_with_kv_bytes_alone_gives_the_pool():
    log = read_startup_log("Available KV cache memory: 51.63 GiB\nGPU KV cache size: 422,960 tokens\n")
    plan = planned(request(log=log), "A100")
    assert plan.chosen.instance.budget.kv_expected == log.kv_bytes
    assert plan.chosen.instance.budget.overhead.source.startswith("measured")
    (tokens,) = plan.log_comparisons
    assert tokens.is_exact


def test_capacity_is_ordered():
    capacity = planned(request(shared_prefix=1600), "A100").chosen.capacity
    assert capacity.worst_case == capacity.contiguous < capacity.expected < capacity.shared
    assert capacity.at_low < capacity.shared
    assert capacity.planned == int(0.7 * capacity.shared)


def test_a_limit_of_sequences_limits_the_plan():
    assert planned(request(max_num_seqs=5), "A100").chosen.capacity.planned == 5


def test_the_cheapest_devices_come_first_and_every_set_holds_the_load():
    sets, refusals = search_devices(request(), device_cards())
    priced = [found.per_hour_usd for found in sets if found.per_hour_usd is not None]
    assert priced == sorted(priced)
    assert all(found.per_hour_usd is None for found in sets[len(priced) :])
    assert len(sets) + len(refusals) == len(device_cards())
    for found in sets:
        assert found.capacity.planned * found.num_replicas >= 32
        assert found.throughput.tpot_s <= 0.1


def test_a_price_moves_a_device_to_the_front():
    cards = [with_price(card, {"H100": 0.01}) for card in device_cards()]
    sets, _ = search_devices(request(), cards)
    assert sets[0].instance.card.name == "H100-SXM"


def test_more_users_take_more_replicas():
    card = find_card("L40S")
    few, many = device_set(request(users=8), card, 1), device_set(request(users=800), card, 1)
    assert few.num_replicas == 1 < many.num_replicas
    assert many.capacity.planned * many.num_replicas >= 800
    assert many.per_hour_usd == pytest.approx(1.861 * many.num_replicas)


def test_a_limit_of_time_takes_smaller_batches():
    card = find_card("A100")
    free, tight = device_set(request(users=400), card, 1), device_set(request(users=400, max_tpot_s=0.025), card, 1)
    assert tight.throughput.tpot_s <= 0.025 < free.throughput.tpot_s
    assert tight.num_replicas > free.num_replicas
    with pytest.raises(ConfigError, match="at most 1 ms"):
        device_set(request(max_tpot_s=0.001), card, 1)


def test_engines_run_where_they_run():
    assert not runs_on(EngineName.VLLM, find_card("M2-Ultra-192"))
    assert runs_on(EngineName.LLAMA_CPP, find_card("M2-Ultra-192"))
    assert runs_on(EngineName.VLLM, find_card("GB10"))
    assert not runs_on(EngineName.SGLANG, find_card("Raspberry-Pi-5-16"))
    _, refusals = search_devices(request(), [find_card("M2-Ultra-192")])
    assert "does not run" in refusals[0].reason


def test_a_model_too_large_for_the_device_is_refused_with_the_numbers():
    with pytest.raises(ConfigError, match=r"weights take .* GiB .* nothing is left for KV"):
        planned(request("llama-3.1-405b"), "RTX-4090")
    with pytest.raises(ConfigError, match="None of the known devices"):
        make_plan(request("llama-3.1-405b"), [], [find_card("RTX-4090")])


def test_costs_are_the_price_over_the_tokens():
    found = device_set(request(), find_card("A100"), 1)
    assert found.cost is not None and found.per_hour_usd is not None
    speed = found.throughput
    assert found.cost.output == pytest.approx(5.121 / 3600 / speed.output_tokens_per_s * 1e6)
    assert found.cost.blended < found.cost.output
    assert found.cost.input_uncached < found.cost.output


def test_a_shared_prefix_saves_compute_as_well_as_memory():
    alone = device_set(request(prompts=parse_lengths("2400")), find_card("A100"), 1)
    shared = device_set(request(prompts=parse_lengths("800"), shared_prefix=1600), find_card("A100"), 1)
    assert shared.throughput.tpot_s < alone.throughput.tpot_s
    assert shared.cost is not None and alone.cost is not None
    assert shared.cost.output < alone.cost.output
    assert shared.cost.hit_rate == pytest.approx(2 / 3)


def test_the_context_table_goes_from_1k_to_the_models_end():
    rows = planned(request("qwen3-next-80b-a3b"), "H200").rows
    assert sorted({row.context for row in rows}) == [c for c in CONTEXTS if c <= 262_144]
    for batch in {row.batch for row in rows}:
        column = [row for row in rows if row.batch == batch]
        assert [row.kv_share for row in column] == sorted(row.kv_share for row in column)
        assert all(row.floor_s < row.expected_s for row in column)
        assert all(0 <= row.kv_read_share < 1 for row in column)
    ten_million = planned(request("llama-4-scout"), "H200").rows
    assert max(row.context for row in ten_million) == 1 << 20


def test_decode_of_a_large_batch_at_short_context_is_bound_by_compute():
    rows = planned(request(), "H20").rows
    assert all(row.is_memory_bound for row in rows if row.batch == 1)
    from kvasir.planner.speed import SpeedModel

    speed: SpeedModel = planned(request(), "H20").speed.floor
    work = speed.decode_work(512, 128)
    assert speed.roofline.compute_s(work.num_flops) > speed.roofline.memory_s(work.num_bytes)


def test_the_crossover_is_where_kv_is_half_of_the_traffic():
    speed = planned(request(), "A100").speed
    crossing = speed.crossover_context(1)
    assert crossing is not None
    work, weights = speed.decode_work(1, crossing), speed.decode_work(1, 0)
    assert work.num_bytes == pytest.approx(2 * weights.num_bytes, rel=1e-3)
    assert planned(request("falcon-7b"), "A100").speed.crossover_context(1) is None


@pytest.mark.parametrize(
    ("trap", "asked", "card"),
    [
        (Trap.CONTEXT_TOO_LONG, request(max_model_len=131_072), "L4"),
        (Trap.CONTEXT_UNUSED, request(prompts=parse_lengths("100"), outputs=parse_lengths("50")), "A100"),
        (Trap.CONTEXT_BEYOND_MODEL, request("llama-3-8b", max_model_len=16_384), "A100"),
        (Trap.HEADS_REPLICATED, request("qwen2.5-0.5b", tensor_parallel=4), "A100"),
        (Trap.LATENT_REPLICATED, request("deepseek-v2-lite", tensor_parallel=2), "A100"),
        (Trap.FP8_WITHOUT_SCALES, request(k_dtype=StoreDtype.FP8, v_dtype=StoreDtype.FP8), "A100"),
        (
            Trap.FOUR_BIT_K_BIAS,
            request("qwen2.5-7b", EngineName.LLAMA_CPP, k_dtype=StoreDtype.Q4_0, v_dtype=StoreDtype.Q4_0),
            "A100",
        ),
        (Trap.SLIDING_TIMES_SLOTS, request("gemma-3-12b", EngineName.LLAMA_CPP), "A100"),
        (Trap.WINDOWS_IGNORED, request("mistral-7b-v0.1", EngineName.LLAMA_CPP), "A100"),
        (Trap.WINDOWS_IGNORED, request("gemma-2-9b", version="0.7.3"), "A100"),
        (Trap.QUANTISED_V_NEEDS_FLASH, request(engine=EngineName.LLAMA_CPP, v_dtype=StoreDtype.Q8_0), "A100"),
        (Trap.TOKENS_UNDERSTATE, request("gemma-3-12b", version="0.15"), "A100"),
        (Trap.BATCHED_TOKENS_SHRINK, request("gemma-3-12b"), "A100"),
        (Trap.GRAPHS_OUTSIDE, request(version="0.15"), "A100"),
        (Trap.MAY_NOT_START, request(utilization=0.95, max_model_len=2048, prompts=parse_lengths("100")), "tight"),
    ],
    ids=lambda value: value.value if isinstance(value, Trap) else "",
)
def test_known_traps_are_told(trap, asked, card):
    if card == "tight":
        tight = replace(find_card("RTX-3090"), memory_bytes=int(18.6 * GIB))
        plan = make_plan(asked, [tight], [])
    else:
        plan = planned(asked, card)
    assert trap in traps(plan)


def test_a_plain_run_has_no_traps():
    asked = request(max_model_len=16_384, prompts=parse_lengths("lognormal:2000,9000"))
    assert planned(asked, "A100").traps == ()


def test_the_sentence_about_a_long_context_names_one_that_fits():
    plan = planned(request(max_model_len=131_072), "L4")
    (sentence,) = (text for trap, text in plan.traps if trap is Trap.CONTEXT_TOO_LONG)
    fits = int(re.findall(r"at most ([\d,]+)", sentence)[0].replace(",", ""))
    assert plan.chosen.instance.pool.num_sequences(fits) >= 1 > plan.chosen.instance.pool.num_sequences(fits + 16)


def commands(plan: Plan) -> dict[EngineName, str]:
    return {entry.engine: entry.flags.command for entry in plan.commands if entry.flags is not None}


def test_commands_of_all_engines():
    found = commands(planned(request("gemma-3-12b", tensor_parallel=2), "A100"))
    assert found.keys() == {EngineName.VLLM, EngineName.SGLANG, EngineName.LLAMA_CPP}
    for flag in ("--tensor-parallel-size 2", "--gpu-memory-utilization 0.9", "--max-model-len 32768"):
        assert flag in found[EngineName.VLLM]
    for flag in ("--max-num-seqs", "--max-num-batched-tokens 8192", "--kv-cache-dtype auto", "--block-size 16"):
        assert flag in found[EngineName.VLLM]
    for flag in ("--tp 2", "--mem-fraction-static 0.88", "--max-total-tokens", "--swa-full-tokens-ratio 0.8"):
        assert flag in found[EngineName.SGLANG]
    for flag in ("--page-size 1", "--radix-eviction-policy lru", "--chunked-prefill-size", "--max-running-requests"):
        assert flag in found[EngineName.SGLANG]
    for flag in ("-np 32", "-ub 512", "-ctk bf16", "-ctv bf16", "-fa on", "-ngl 99", "--kv-unified"):
        assert flag in found[EngineName.LLAMA_CPP]


def test_formats_become_the_nearest_of_the_other_engine():
    eight = planned(request(k_dtype=StoreDtype.FP8, v_dtype=StoreDtype.FP8), "A100")
    assert "--kv-cache-dtype fp8" in commands(eight)[EngineName.VLLM]
    assert "-ctk q8_0 -ctv q8_0" in commands(eight)[EngineName.LLAMA_CPP]
    four = planned(request(engine=EngineName.LLAMA_CPP, k_dtype=StoreDtype.Q8_0, v_dtype=StoreDtype.Q4_0), "A100")
    assert "-ctk q8_0 -ctv q4_0" in commands(four)[EngineName.LLAMA_CPP]
    assert "--kv-cache-dtype fp8" in commands(four)[EngineName.VLLM]


def test_every_command_says_which_rule_it_assumes():
    for entry in planned(request(version="0.18"), "A100").commands:
        if entry.flags is not None:
            assert entry.flags.assumes.lower().startswith(entry.engine.value)
        else:
            assert entry.reason


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-4-26b-a4b", "deepseek-v2-lite", "qwen3.5-9b", "gpt-oss-20b"])
@pytest.mark.parametrize("engine", [EngineName.VLLM, EngineName.SGLANG, EngineName.LLAMA_CPP])
def test_a_plan_is_shown_as_tables_and_json(name, engine):
    plan = make_plan(request(name, engine), [], SOME_CARDS)
    said = json.loads(json.dumps(plan_json(plan)))
    assert said["chosen"]["sequences"]["planned"] * said["chosen"]["num_replicas"] >= 32
    assert said["device_sets"][0]["device"]["name"] == said["chosen"]["device"]["name"]
    assert said["model"]["num_parameters"] == plan.request.shape.num_parameters
    for table in plan_tables(plan):
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns) or len(table.rows[0])}


def test_the_page_needs_no_network_and_escapes_what_it_shows(tmp_path: Path):
    shape = replace(request().shape, name="<script>alert(1)</script>")
    page = plan_html(make_plan(replace(request(), shape=shape), [find_card("A100")], [find_card("L40S")]))
    markup = re.sub(r"<script>.*?</script>", "", page, count=1, flags=re.S)  # plotly itself
    assert "alert(1)" not in re.sub(r"&lt;script&gt;alert\(1\)&lt;/script&gt;", "", markup)
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", page[:2000] + markup)
    assert markup.count('class="plotly-graph-div"') == 6
    assert "vllm serve" in markup


def test_what_is_assumed_of_speed_is_said():
    assert any("extrapolation" in note for note in planned(request(), "RTX-4090").notes)
    assert any("mixtures of experts" in note for note in planned(request("mixtral-8x7b"), "H200").notes)
    assert planned(request(), "H200").notes == ()


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: request(users=0), "--users"),
        (lambda: request(shared_prefix=-1), "--shared-prefix"),
        (lambda: request(utilization=1.5), "--memory-utilization"),
        (lambda: request(tensor_parallel=0), "--tp"),
        (lambda: request(max_model_len=1), "--context"),
        (lambda: find_weight_format("int3"), "weight format"),
    ],
)
def test_what_cannot_be_is_refused_by_name(build, match):
    with pytest.raises(ConfigError, match=match):
        build()
