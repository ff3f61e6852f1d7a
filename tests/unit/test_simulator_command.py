"""``kvasir simulate`` from options to output: runs, sweeps, capacity, hit rates, conversion, calibration, refusals."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvasir.cli.main import make_app
from kvasir.cli.simulate_options import CALIBRATION, DEPLOYMENT, QUESTION, TRAFFIC
from kvasir.core.errors import KvasirError
from kvasir.simulator.calibration import Fit
from kvasir.simulator.cost_file import CostFile, ProbedDeployment
from kvasir.simulator.step_cost import FittedStepCost
from kvasir.workload.traces.read import read_trace

COST = FittedStepCost(per_step_s=0.01, per_token_s=1e-4, per_sequence_s=1e-4, per_pair_s=1e-8, per_read_s=1e-7)
DEVICE = ("--model", "llama-3.1-8b", "--hardware", "H100-SXM")


def invoke(*arguments: str) -> Any:
    result = CliRunner().invoke(make_app(["simulate"]), ["simulate", *map(str, arguments)])
    if isinstance(result.exception, KvasirError):
        raise result.exception
    return result


def simulated(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Thirty requests over six seconds; every prompt of three starts alike."""
    lines = [
        {
            "timestamp": 200 * i,
            "input_length": 1100,
            "output_length": 5 + i % 9,
            "hash_ids": [i % 3, 10 + i % 3, 100 + i],
        }
        for i in range(30)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture
def costs(tmp_path: Path) -> str:
    probed = ProbedDeployment(
        model="demo",
        machine="a box",
        max_model_len=8192,
        max_num_batched_tokens=512,
        max_num_seqs=16,
        block_size=16,
        num_blocks=(3200,),
    )
    fit = Fit(cost=COST, error=0.03, errors={"1 x (8 + 8)": 0.03}, num_observations=50, num_left_out=0)
    path = tmp_path / "costs.json"
    CostFile.of(fit, probed).write(path)
    return str(path)


def test_a_run_on_a_device(trace):
    data = simulated("--trace", trace, *DEVICE, "--goodput", "ttft:500", "tpot:50")
    assert data["completed"] == 30 and data["failed"] == 0
    assert data["hit_rate"] == pytest.approx(27 * 1024 / (30 * 1100))
    assert data["slo"] == "ttft:500 tpot:50" and data["good_fraction"] == 1.0
    assert data["money"]["price_per_hour_usd"] == pytest.approx(98.32 / 8, rel=0.01)
    timeline = data["timeline"]
    assert {len(values) for values in timeline.values()} == {201}
    assert timeline["time_s"][-1] == pytest.approx(data["duration"])
    assert 0 < max(timeline["used_blocks"]) <= data["peak_used_blocks"]
    assert "Llama-3.1-8B" in data["deployment"] and "blocks of 512 tokens" in data["deployment"]


def test_a_run_on_fitted_costs(trace, costs):
    data = simulated("--trace", trace, "--costs", costs)
    assert data["num_blocks"] == 100  # 3200 blocks of 16 tokens in blocks of the trace's 512
    assert "money" not in data
    fine = simulated("--trace", trace, "--costs", costs, "--block-size", "16", "--price", "2")
    assert fine["num_blocks"] == 3200 and fine["money"]["price_per_hour_usd"] == 2.0


def test_tables_for_people(trace, costs):
    result = invoke("--trace", trace, "--costs", costs, "--instances", "2", "--routing", "prefix")
    for words in ("time to first token", "blocks in use", "preemptions", "Instances", "p99"):
        assert words in result.stdout
    assert "30 requests" in result.stderr and "demo on a box" in result.stderr


def test_files_are_written(trace, costs, tmp_path):
    pytest.importorskip("plotly")
    page, events = tmp_path / "run.html", tmp_path / "run.json"
    result = invoke("--trace", trace, "--costs", costs, "--html", page, "--chrome-trace", events)
    assert result.exit_code == 0
    assert "Blocks over time" in page.read_text()
    assert json.loads(events.read_text())["traceEvents"]


def test_a_sweep(trace, costs):
    data = simulated("--trace", trace, "--costs", costs, "--sweep", "kv-blocks=20,80", "--sweep", "policy=lru,fifo")
    assert [point["settings"] for point in data["sweep"]] == [
        {"kv-blocks": blocks, "policy": policy} for blocks in ("20", "80") for policy in ("lru", "fifo")
    ]
    assert "Sweep" in invoke("--trace", trace, "--costs", costs, "--sweep", "max-num-seqs=1,4").stdout


def test_capacity(trace, costs):
    data = simulated("--trace", trace, "--costs", costs, "--capacity", "--goodput", "ttft:400", "--attainment", "0.9")
    rates = [probe["request_rate"] for probe in data["probes"]]
    assert min(rates) <= data["capacity_requests_per_s"] <= max(rates)
    text = invoke("--trace", trace, "--costs", costs, "--capacity", "--goodput", "ttft:400").stdout
    assert "capacity" in text and "too much" in text


def test_hit_rates_need_no_model(trace):
    data = simulated("--trace", trace, "--hit-rates", "2,unlimited", "--from-share", "0")
    by_policy = {(run["policy"], run["num_blocks"]): run["hit_rate"] for run in data["hit_rates"]}
    assert by_policy[None, None] == pytest.approx(27 * 1024 / (30 * 1100))
    assert by_policy["lru", 2] < by_policy["belady", 2] < by_policy[None, None]
    alone = simulated("--trace", trace, "--hit-rates", "auto", "--policy", "fifo")
    assert {run["policy"] for run in alone["hit_rates"]} == {"fifo", None}


def test_a_trace_is_converted(trace, tmp_path):
    target = tmp_path / "half.jsonl"
    result = invoke("--trace", trace, "--num-prompts", "10", "--trace-speed", "2", "--emit", target)
    assert result.exit_code == 0 and "written" in result.stderr
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(lines) == 10 and lines[-1]["timestamp"] == 900


def test_arrivals_can_be_replaced(trace, costs):
    steady = simulated("--trace", trace, "--costs", costs, "--request-rate", "2", "--burstiness", "4", "--seed", "5")
    assert steady["traffic"].find("requests/s") > 0 and steady["duration"] == pytest.approx(15, rel=0.1)
    loop = simulated("--trace", trace, "--costs", costs, "--max-concurrency", "1")
    assert loop["max_running"] == 1 and "a closed loop of 1 clients" in loop["deployment"]


def test_texts_are_counted_by_the_models_tokenizer(demo_model, tmp_path, costs):
    path = tmp_path / "chat.jsonl"
    system = {"role": "system", "content": "You answer briefly. " * 20}
    lines = [{"messages": [system, {"role": "user", "content": f"Question {i}?"}], "max_tokens": 4} for i in range(5)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    target = tmp_path / "chat.mooncake.jsonl"
    invoke("--trace", path, "--model", "demo", "--emit", target)
    emitted = [json.loads(line) for line in target.read_text().splitlines()]
    assert all(line["input_length"] > 80 for line in emitted)
    assert len({line["hash_ids"][0] for line in emitted}) == 1
    data = simulated("--trace", target, "--hash-block-size", "16", "--costs", costs, "--request-rate", "2")
    assert data["hit_rate"] > 0.5


def test_calibration_of_the_local_engine_feeds_the_next_simulation(demo_model, trace, tmp_path):
    target = tmp_path / "fitted.json"
    options = ("--model", "demo", "--kv-cache-memory", "64MiB", "--max-model-len", "192", "--threads", "1")
    result = invoke("--calibrate", "--probe-seconds", "0", "--costs", target, *options)
    assert result.exit_code == 0, result.output
    assert "Step costs of" in result.stdout and "How well they fit" in result.stdout
    data = simulated("--trace", trace, "--costs", target, "--max-model-len", "4096")
    assert data["completed"] == 30 and data["median_ttft_ms"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--trace"),
        (("--trace", "T"), "Say what a step costs"),
        (("--trace", "T", "--hardware", "H100"), "needs a --model"),
        (("--trace", "T", "--model", "llama-3.1-8b", "--hardware", "this"), "--calibrate"),
        (("--trace", "T", *DEVICE, "--costs", "C"), "--hardware and --costs"),
        (("--trace", "T", "--costs", "C", "--tp", "2"), "--tp has no effect"),
        (("--trace", "T", "--costs", "C", "--base-url", "http://x"), "--base-url does not go with"),
        (("--trace", "T", "--costs", "C", "--attainment", "0.5"), "--attainment does not go with"),
        (("--trace", "T", "--costs", "C", "--from-share", "0.5"), "--from-share does not go with"),
        (("--trace", "T", "--costs", "C", "--capacity"), "--goodput"),
        (
            ("--trace", "T", "--costs", "C", "--capacity", "--goodput", "ttft:9", "--max-concurrency", "2"),
            "closed loop",
        ),
        (("--trace", "T", "--costs", "C", "--capacity", "--sweep", "kv-blocks=5"), "two questions"),
        (("--trace", "T", "--costs", "C", "--sweep", "kv-blocks=5", "--sweep", "kv-blocks=9"), "swept twice"),
        (
            ("--trace", "T", "--costs", "C", "--sweep", "kv-blocks=50", "--chrome-trace", "x"),
            "--chrome-trace shows one run",
        ),
        (("--trace", "T", "--hit-rates", "auto", "--hardware", "H100-SXM"), "--hardware does not go with --hit-rates"),
        (("--trace", "T", "--hit-rates", "auto", "--request-rate", "3"), "--request-rate does not go with"),
        (("--trace", "T", "--hit-rates", "many"), "write sizes in blocks"),
        (("--trace", "T", "--hit-rates", "5", "--from-share", "1"), "--from-share must be"),
        (("--trace", "T", "--costs", "C", "--request-rate", "3", "--trace-speed", "2"), "both set the times"),
        (("--trace", "T", "--costs", "C", "--burstiness", "3"), "--burstiness shapes"),
        (("--trace", "T", "--costs", "C", "--max-context", "5"), "No request of the trace"),
        (("--trace", "T", "--costs", "C", "--block-size", "40"), "multiple of 16"),
        (("--trace", "T", "--costs", "C", "--block-size", "48"), "do not line up"),
        (("--trace", "T", "--costs", "C", "--goodput", "fast"), "no objective"),
        (("--trace", "T", *DEVICE, "--kv-cache-memory", "1GiB"), "hold no sequence"),
        (("--trace", "T", "--model", "llama-3.1-70b", "--hardware", "L4"), "nothing is left for KV"),
        (("--calibrate", "--trace", "T"), "--trace does not go with --calibrate"),
        (("--calibrate", "--instances", "2"), "--instances does not go with --calibrate"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(trace, costs, monkeypatch, tmp_path, arguments, words):
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path / "empty"))
    given = [{"T": trace, "C": costs}.get(argument, argument) for argument in arguments]
    with pytest.raises(KvasirError) as error:
        invoke(*given)
    assert words in str(error.value)


def test_the_last_calibration_is_the_default(trace, costs, monkeypatch, tmp_path):
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "step_costs.json").write_text(Path(costs).read_text())
    assert "demo on a box" in simulated("--trace", trace)["deployment"]


def test_simulating_imports_no_torch(trace, costs):
    code = f"""
import sys
sys.argv = ["kvasir", "simulate", "--trace", {trace!r}, "--costs", {costs!r}, "--json"]
from kvasir.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code
heavy = {{"torch", "numpy", "transformers", "fastapi", "plotly"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


DOCUMENT = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()


def test_the_document_names_tests_and_benches_that_exist():
    named = set(re.findall(r"`((?:tests|bench)/[\w/]+\.py)`", DOCUMENT))
    assert len(named) >= 6
    assert [name for name in named if not (Path(__file__).parents[2] / name).exists()] == []


def test_the_documents_request_log_line_is_one(tmp_path):
    found = re.search(r"```json\n(\{.*?\})\n```", DOCUMENT, re.DOTALL)
    assert found
    line = json.loads(found[1]) | {"block_keys": ["5d1f0a94c3b2e617"]}
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(line) + "\n")
    (request,) = read_trace(path).requests
    assert (request.num_prompt_tokens, request.num_output_tokens, len(request.hash_ids)) == (812, 120, 1)


def test_every_option_the_document_shows_exists():
    options = {
        parameter.name for group in (TRAFFIC, DEPLOYMENT, QUESTION, CALIBRATION) for parameter in group.parameters
    }
    shown = set(re.findall(r"--([a-z][a-z-]+)", DOCUMENT)) - {"json", "html", "chrome-trace"}
    assert len(shown) > 15
    assert {name.replace("-", "_") for name in shown} <= options
