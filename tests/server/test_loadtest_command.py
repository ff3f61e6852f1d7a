"""``kvasir bench serve`` as a person types it: files, tables, JSON, reports, sweeps, comparisons, and refusals."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvasir.cli.bench_options import ENDPOINT_OPTIONS, LOAD_OPTIONS, MEASURE_OPTIONS, WORKLOAD_OPTIONS
from kvasir.cli.bench_settings import make_settings
from kvasir.cli.main import make_app
from kvasir.core.errors import ConfigError
from kvasir.loadtest.prompt_maker import PromptKind
from kvasir.loadtest.record import CountedBy
from kvasir.loadtest.settings import WorkloadKind
from kvasir.workload.arrivals import RampShape
from kvasir.workload.traces.read import TraceFormat
from scripted_server import scripted_server

RAMP_OPTIONS = ["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "2"]
SHORT = ["--input-tokens", "8", "--output-tokens", "4", "--num-warmups", "0"]


@pytest.fixture(scope="module")
def server() -> Any:
    with scripted_server(slots=4) as running:
        yield running


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(make_app(["bench"]), ["bench", "serve", *arguments])


def load(server: Any, *arguments: str, script: dict[str, Any] | None = None) -> Result:
    body = json.dumps({"script": script or {}})
    return bench("--base-url", server.url, "--extra-body", body, *SHORT, *arguments)


def refusal(*arguments: str) -> str:
    done = bench(*arguments)
    assert isinstance(done.exception, ConfigError), done.output
    return str(done.exception)


def plots(page: str) -> list[dict[str, Any]]:
    """The plots of a report, read back from the page."""
    found = re.findall(r'<script type="application/json" data-for="[\w-]+">(.*?)</script>', page, re.DOTALL)
    return [json.loads(text) for text in found]


def titles(page: str) -> list[str]:
    return [plot["layout"]["title"]["text"] for plot in plots(page)]


def test_a_load(server: Any, tmp_path: Path) -> None:
    done = load(
        server, "--num-prompts", "12", "--goodput", "ttft:2000", "tpot:500", "--html", "r.html", "-o", "r.json",
        "--max-concurrency", "6", script={"gap_s": 0.01, "cached_share": 0.5},
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["completed"] == 12
    assert data["is_complete"]
    for text in (
        "12 of 12 ok",
        "96 in, 48 out (counted by usage)",
        "6 at most",
        "within ttft:2000 tpot:500 (ttft met by 100 %, tpot met by 100 %)",
        "prompt tokens cached    50.0 %",
        "TPOT = (e2el - ttft) / (output tokens - 1): the first token is left out",
        "note: The 99th percentile of 12 requests is little more than their maximum.",
    ):
        assert text in done.stdout, text
    assert f"{data['output_throughput']:,.1f} output tok/s" in done.stdout
    assert "written: r.json" in done.stderr
    page = (tmp_path / "r.html").read_text()
    assert "Load test of scripted" in page
    assert {"TTFT: share of requests within", "ITL: share of chunks within", "Requests over time"} <= set(titles(page))
    ttft = next(plot for plot in plots(page) if plot["layout"]["title"]["text"].startswith("TTFT: share"))
    (curve,) = ttft["data"]
    assert curve["x"] == pytest.approx(sorted(1000 * ttft for ttft in data["ttfts"]), rel=1e-3, abs=0.01)
    assert curve["y"][-1] == 100.0
    assert ttft["layout"]["shapes"][0]["x0"] == 2000.0, "the objective"
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href)=|url\(|@import", markup), "nothing comes from elsewhere"


def test_json_is_all_of_stdout(server: Any, tmp_path: Path) -> None:
    done = load(server, "--num-prompts", "3", "--json", "--metric-percentiles", "75")
    data = json.loads(done.stdout)
    assert data["completed"] == 3
    assert data["p75_ttft_ms"] >= data["median_ttft_ms"] > 0
    assert "ttfts" not in data
    (path,) = (tmp_path / "kvasir-bench").glob("*.json")
    assert json.loads(path.read_text())["p75_ttft_ms"] == data["p75_ttft_ms"]


def test_a_sweep_names_the_knee_of_four_slots(server: Any, tmp_path: Path) -> None:
    """The server answers four at once; from there on more load only waits."""
    done = load(server, "--sweep", "concurrency=1,2,4,8,16", "--html", "s.html", "-o", "s.json", script={"gap_s": 0.02})
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "s.json").read_text())
    assert [point["value"] for point in data["points"]] == [1, 2, 4, 8, 16]
    assert [point["max_in_flight"] for point in data["points"]] == [1, 2, 4, 8, 16]
    assert data["knee"] == data["best"] == 4
    assert data["is_complete"]
    assert "Best operating point: concurrency 4." in done.stdout
    assert re.search(r"concurrency 4 .*best, knee", done.stdout)
    page = (tmp_path / "s.html").read_text()
    assert titles(page) == ["What output costs in latency", "Throughput", "TTFT", "TPOT"]
    throughput = plots(page)[1]["data"][0]
    assert throughput["x"] == [1, 2, 4, 8, 16]
    assert throughput["y"] == pytest.approx([point["output_throughput"] for point in data["points"]], rel=1e-3)
    prompts = [str(entry["body"]["prompt"]) for entry in server.log() if entry["body"]["script"] == {"gap_s": 0.02}]
    assert len(set(prompts)) == len(prompts), "no point sends what another has sent"


def test_a_sweep_of_rates_with_objectives(server: Any) -> None:
    options = ["--sweep", "rate=20,400", "--num-prompts", "24", "--goodput", "ttft:60", "--json"]
    done = load(server, *options, script={"gap_s": 0.03})
    data = json.loads(done.stdout)
    assert data["sweep"] == "rate"
    assert [point["request_rate"] for point in data["points"]] == [20, 400]
    assert data["points"][0]["goodput"]["good_requests"] > data["points"][1]["goodput"]["good_requests"]
    assert data["best"] == 20


def test_two_results_compared(server: Any, tmp_path: Path) -> None:
    for name, gap_s in (("a", 0.005), ("b", 0.08)):
        options = ["--num-prompts", "20", "--repeat", "3", "-o", f"{name}.json"]
        assert load(server, *options, script={"gap_s": gap_s}).exit_code == 0
    done = bench("--compare", "a.json", "b.json", "--html", "c.html")
    assert done.exit_code == 0, done.output
    row = next(line for line in done.stdout.splitlines() if "mean_tpot_ms" in line)
    assert row.split()[-1] == "worse"
    assert "The band is Welch's interval over the repeated runs of both." in done.stdout
    assert "ITL: share within" in titles((tmp_path / "c.html").read_text())
    same = json.loads(bench("--compare", "a.json", "a.json", "--json").stdout)
    assert {entry["verdict"] for entry in same["differences"]} == {"within noise"}


def test_a_chat_with_its_turns(server: Any) -> None:
    done = load(server, "--workload", "chat", "--turns", "3", "--num-prompts", "2", "--html", "t.html")
    assert done.exit_code == 0, done.output
    assert "6 of 6 ok" in done.stdout
    assert re.search(r"turn +requests +prompt tokens +cached", done.stdout)
    assert "TTFT by turn" in titles(Path("t.html").read_text())


def test_unknown_counts_are_said(server: Any) -> None:
    done = load(server, "--num-prompts", "2", script={"hides_usage": True})
    assert f"(counted by {CountedBy.CHUNKS.value})" in done.stdout
    assert "note: The server gave no usage for 2 answers" in done.stdout


def test_a_recorded_trace(server: Any, tmp_path: Path) -> None:
    lines = [{"timestamp": 200 * i, "input_length": 20, "output_length": 3, "hash_ids": [7]} for i in range(4)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ["--workload", "trace", "--file", "t.jsonl", "--trace-speed", "2", "--json"]
    done = bench("--base-url", server.url, "--extra-body", json.dumps({"run": "trace"}), *options)
    data = json.loads(done.stdout)
    assert (data["completed"], data["request_rate"]) == (4, "trace")
    assert (data["total_input_tokens"], data["total_output_tokens"]) == (80, 12)
    assert data["duration"] > 0.3
    prompts = [entry["body"]["prompt"] for entry in server.log() if entry["body"].get("run") == "trace"][-4:]
    assert len({str(prompt) for prompt in prompts}) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--turns", "3"], "--turns has no part in the random workload; it is for chat and file"),
        (["--workload", "trace", "--file", "x", "--input-tokens", "9"], "--input-tokens has no part in the trace"),
        (["--workload", "file"], "say which one with --file"),
        (["--workload", "chat", "--endpoint", "completions"], "needs the chat route"),
        (["--endpoint", "chat", "--prompts", "tokens"], "use --prompts words"),
        (["--endpoint", "embeddings"], "choose completions or chat"),
        (["--burstiness", "0.5"], "add --request-rate"),
        (["--request-rate", "0"], "must be above 0"),
        (["--ramp-up-strategy", "linear"], "together"),
        ([*RAMP_OPTIONS, "--request-rate", "3"], "both say how fast"),
        (["--sweep", "concurrency=1,2", "--max-concurrency", "3"], "leave out --max-concurrency"),
        (["--sweep", "rate=1,2", "--request-rate", "3"], "leave out --request-rate"),
        (["--sweep", "nonsense"], "is no sweep"),
        (["--goodput", "ttft"], "is no objective"),
        (["stray"], "'stray' belongs to no option"),
        (["--input-tokens", "4:2"], "is no length"),
        (["--extra-body", "{"], "is not JSON"),
        (["--extra-body", "[]"], "must be a JSON object"),
        (["--extra-body", '{"stream": false}'], "'stream'"),
        (["--header", "x"], "is not a header"),
        (["--base-url", "ftp://x"], "address of a server"),
        (["--metric-percentiles", "101"], "between 0 and 100"),
        (["--num-prompts", "0"], "--num-prompts must be above 0"),
        (["--token-ids", "5"], "write one like 1000:20000"),
        (["--compare", "a", "b", "--num-prompts", "5"], "--num-prompts has no part in it"),
        (["--compare", "a", "b", "--goodput", "ttft:5"], "--goodput has no part in it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_means_nothing_is_refused(arguments: list[str], sentence: str) -> None:
    assert sentence in refusal(*arguments)


def test_a_result_that_cannot_be_written_is_no_load(server: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = len(server.log())
    done = load(server, "-o", "file/r.json")
    assert "cannot be written" in str(done.exception)
    assert len(server.log()) == before


GROUPS = {
    "endpoint": ENDPOINT_OPTIONS,
    "workload": WORKLOAD_OPTIONS,
    "load": LOAD_OPTIONS,
    "measure": MEASURE_OPTIONS,
}
TRACE = {"workload": WorkloadKind.TRACE, "file": Path("x")}
CHAT = {"workload": WorkloadKind.CHAT}
RAMP = {"ramp_shape": RampShape.LINEAR, "ramp_start": 1.0, "ramp_end": 2.0}
# Each option with a value that is not its default, and what else has to be given for it to mean something.
OPTIONS: list[tuple[str, Any, dict[str, Any]]] = [
    ("base_url", "http://h:1", {}),
    ("endpoint", "chat", {}),
    ("model", "m", {}),
    ("api_key", "k", {}),
    ("header", ["A: b"], {}),
    ("timeout_s", 5.0, {}),
    ("wait_s", 1.0, {}),
    ("temperature", 0.7, {}),
    ("ignore_eos", False, {}),
    ("extra_body", '{"a": 1}', {}),
    ("workload", WorkloadKind.SHARED_PREFIX, {}),
    ("input_tokens", "5:9", {}),
    ("output_tokens", "5", {}),
    ("prompts", PromptKind.WORDS, {}),
    ("prefix_tokens", 5, {"workload": WorkloadKind.SHARED_PREFIX}),
    ("num_prefixes", 5, {"workload": WorkloadKind.SHARED_PREFIX}),
    ("turns", 9, CHAT),
    ("system_tokens", 5, CHAT),
    ("think_s", 0.5, CHAT),
    ("file", Path("y"), TRACE),
    ("trace_format", TraceFormat.AZURE, TRACE),
    ("hash_block_size", 16, TRACE),
    ("trace_speed", 3.0, TRACE),
    ("follow_sessions", True, TRACE),
    ("max_context", 99, {}),
    ("token_ids", "3:9", {}),
    ("num_prompts", 7, {}),
    ("request_rate", 3.0, {}),
    ("burstiness", 0.5, {"request_rate": 3.0}),
    ("ramp_shape", RampShape.EXPONENTIAL, RAMP),
    ("ramp_start", 0.5, RAMP),
    ("ramp_end", 7.0, RAMP),
    ("max_concurrency", 3, {}),
    ("num_warmups", 0, {}),
    ("duration_s", 5.0, {}),
    ("repeat", 2, {}),
    ("seed", 4, {}),
    ("reset_cache", True, {}),
    ("sweep", "rate=1,2", {}),
    ("goodput", ["ttft:5"], {}),
    ("more_objectives", ["tpot:5"], {"goodput": ["ttft:5"]}),
    ("percentiles", "42", {}),
    ("metrics_interval_s", 0.0, {}),
]


def built(given: dict[str, Any]) -> str:
    """The settings that ``given`` leads to, spelled out."""
    groups = {
        group: {parameter.name: given.get(parameter.name) for parameter in options.parameters}
        for group, options in GROUPS.items()
    }
    return repr(make_settings(**groups))


@pytest.mark.parametrize(("name", "value", "needed"), OPTIONS, ids=[name for name, _, _ in OPTIONS])
def test_every_option_changes_the_settings(name: str, value: Any, needed: dict[str, Any]) -> None:
    assert built(needed | {name: value}) != built(needed)


def test_the_list_of_options_is_whole() -> None:
    every = [parameter.name for options in GROUPS.values() for parameter in options.parameters]
    assert [name for name, _, _ in OPTIONS] == every
