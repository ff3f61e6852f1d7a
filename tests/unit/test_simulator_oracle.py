"""The published Mooncake traces: facts of the files, and hit rates equal to kvcache-simulator 0.1.3 to four digits.

The rates in tests/trace_oracle_hit_rates.csv were printed by that program; bench/trace_hit_rates.py checks all of them.
"""

import csv
import os
from pathlib import Path

import pytest

from kvasir.hardware.cards import find_card
from kvasir.planner.kv_groups import StoreFormat
from kvasir.planner.sources import find_model_card
from kvasir.planner.speed import GPU_SERVER
from kvasir.planner.weight_formats import find_weight_format
from kvasir.scheduling.config import SchedulerConfig
from kvasir.simulator.cache_replay import replay_cache
from kvasir.simulator.deployment import device_cost
from kvasir.simulator.eviction import EvictionPolicy
from kvasir.simulator.simulate import SimulationSetup, simulate
from kvasir.workload.traces.read import ReadOptions, read_trace
from kvasir.workload.traces.trace import Trace

pytestmark = pytest.mark.data
ROWS = list(csv.DictReader((Path(__file__).parents[1] / "trace_oracle_hit_rates.csv").read_text().splitlines()))
SIZES = {"", "119", "3819", "15279"}
"""Unlimited, smaller than a prompt, where policies differ most, where Belady is perfect."""


@pytest.fixture(scope="module")
def folder() -> Path:
    """``KVASIR_DATA``: the folder that holds traces/."""
    if "KVASIR_DATA" not in os.environ:
        pytest.skip("KVASIR_DATA is not set")
    return Path(os.environ["KVASIR_DATA"]) / "traces"


@pytest.fixture(scope="module")
def traces(folder: Path) -> dict[str, Trace]:
    return {name: read_trace(folder / f"{name}.jsonl") for name in ("mooncake_conversation", "mooncake_synthetic")}


def test_facts_of_the_conversation_trace(traces):
    trace = traces["mooncake_conversation"]
    assert len(trace) == 12_031
    assert trace.num_prompt_tokens / len(trace) == pytest.approx(12_035.06, abs=0.005)
    assert trace.num_output_tokens / len(trace) == pytest.approx(342.62, abs=0.005)
    assert sum(len(request.hash_ids) for request in trace.requests) == 288_500
    assert len({i for request in trace.requests for i in request.hash_ids}) == 182_790
    assert all(len(request.hash_ids) == -(-request.num_prompt_tokens // 512) for request in trace.requests)


def test_facts_of_the_other_traces(traces, folder):
    synthetic = traces["mooncake_synthetic"]
    assert len(synthetic) == 3_993
    assert len({i for request in synthetic.requests for i in request.hash_ids}) == 43_924
    assert len(read_trace(folder / "azure_llm_2023_code.csv")) == 8_819
    assert len(read_trace(folder / "azure_llm_2023_conv.csv")) == 19_366
    assert len(read_trace(folder / "arxiv_summarization_lengths.csv")) == 28_257
    weka = read_trace(folder / "weka_agentic_sessions_sample.jsonl", ReadOptions(session_rate=1.0))
    assert len({request.session_id for request in weka.requests}) == 410
    assert len(weka) == pytest.approx(24_500, abs=200)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["num_blocks"] in SIZES], ids=lambda r: "-".join(list(r.values())[:3])
)
def test_hit_rates_are_the_oracles(traces, row):
    is_unlimited = row["policy"] == "unlimited"
    policy = EvictionPolicy.LRU if is_unlimited else EvictionPolicy(row["policy"])
    replay = replay_cache(traces[row["trace"]], policy, None if is_unlimited else int(row["num_blocks"]))
    assert f"{replay.hit_rate(0.5):.4f}" == row["hit_rate_last_half"]
    if row["hit_rate_all"]:
        assert f"{replay.hit_rate():.4f}" == row["hit_rate_all"]


def test_recorded_traffic_through_the_whole_simulator(traces):
    """An hour of chat on one device: nobody is lost, and a timed cache hits no more than an unlimited one."""
    trace = traces["mooncake_conversation"].head(1500)
    shape = find_model_card("llama-3.1-8b")
    assert shape is not None
    card = find_card("H200")
    cost = device_cost(shape, find_weight_format("fp8"), StoreFormat(block_size=512), card, GPU_SERVER)
    setup = SimulationSetup(
        cost=cost,
        num_blocks=(1800,),
        max_model_len=131_072,
        block_size=512,
        scheduler=SchedulerConfig(max_num_batched_tokens=8192, max_num_seqs=256),
    )
    result = simulate(trace, setup)
    assert len(result.outcomes) == len(trace) and not result.refused
    assert 0.0 < result.hit_rate() <= replay_cache(trace, EvictionPolicy.LRU).hit_rate()
