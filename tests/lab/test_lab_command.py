"""``kvasir quality`` and ``kvasir serve --quality-report`` as programs, on the hand-made model."""

import json
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from lab_planted import planted_lab
from typer.testing import CliRunner, Result

from kvasir.claims.result_file import read_result
from kvasir.cli.main import make_app
from kvasir.core.errors import ConfigError, KvasirError, ModelError
from kvasir.engine.flags import make_engine_config
from kvasir.lab.chat import Chat
from kvasir.lab.server_subject import ServerSubject
from kvasir.server.config import ServerConfig
from kvasir.server.launch import run_server
from live_server import LiveServer, running_server

ENGINE = {"threads": 1, "max_model_len": 512, "cache": {"memory": {"kv_cache_memory_bytes": 48 << 20}}}


def kvasir(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As a program of its own."""
    command = [sys.executable, "-m", "kvasir.cli.main", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


def quality(*arguments: object, cwd: Path) -> Result:
    """In this process, which has loaded everything already; a refusal is the result's exception."""
    with chdir(cwd):
        return CliRunner().invoke(make_app(["quality"]), ["quality", *map(str, arguments)])


@pytest.fixture(scope="module")
def measured(induction_model, tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run with a gate that bf16 in blocks of 32 keeps and fp16 does not."""
    folder = tmp_path_factory.mktemp("quality")
    done = kvasir(
        *("quality", induction_model, "--threads", 1, "--max-model-len", 512, "--measures", "kl,copy,passkey"),
        *("--setting", "blocks=kv_cache_dtype:bf16,block_size:32", "--setting", "half=kv_cache_dtype:fp16"),
        *("--max-kl", "1e-12", "--max-copy-gap", "0.5", "--min-passkey", "0.9", "--output", "out/quality.json"),
        cwd=folder,
    )
    return folder / "out" / "quality.json", done


def test_a_gate_that_is_not_kept_exits_with_3_and_names_what_failed(measured):
    _, done = measured
    assert done.returncode == 3, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: gate: ")]
    assert len(errors) == 1 and errors[0].startswith("error: gate: half: mean KL ")
    assert "is above --max-kl 1e-12" in errors[0]


def test_the_table_shows_reference_floor_and_settings(measured):
    _, done = measured
    assert "Quality of induction (quick, context 512)" in done.stdout
    header = next(line for line in done.stdout.splitlines() if "16-bit again" in line)
    assert header.split("16-bit again")[0].rstrip().endswith("16-bit") and "blocks" in header and "half" in header
    assert "the model has induction heads" in done.stdout


def test_the_result_file_and_the_page_are_written(measured):
    path, _ = measured
    result = read_result(path)
    assert result.measurements["order"] == ["16-bit", "16-bit again", "16-bit nudged", "blocks", "half"]
    assert result.measurements["gate"]["passed"] == {"blocks": True, "half": False}
    floor = result.measurements["measures"]["kl"]["settings"]["16-bit again"]["overall"]
    assert floor["mean"]["value"] == 0 and floor["max"]["value"] == 0
    assert path.with_suffix(".html").stat().st_size > 1_000_000


def test_json_goes_to_standard_output_alone(induction_model, tmp_path):
    done = quality(
        *(induction_model, "--threads", 1, "--max-model-len", 512, "--measures", "copy", "--json"),
        *("--no-html", "--setting", "a=block_size:32"),
        cwd=tmp_path,
    )
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["measurements"]["settings"]["a"]["flags"]["block_size"] == "32"
    assert not list(tmp_path.rglob("*.html"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--setting", "a=blok_size:16"), "did you mean 'block_size'?"),
        (("--setting", "a=block_size:17"), "Setting 'a': --block-size '17'"),
        (("--measures", "speed"), "There is no measure 'speed'"),
        (("--measures", "copy", "--max-kl", "0.1"), "--max-kl needs the measure 'kl'"),
        (("--text", "nowhere.txt"), "nowhere.txt cannot be read"),
    ],
    ids=["flag", "value", "measure", "limit", "text"],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(induction_model, tmp_path, arguments, reason):
    done = quality(induction_model, "--threads", 1, "--max-model-len", 512, *arguments, cwd=tmp_path)
    assert done.exit_code == 1
    assert isinstance(done.exception, KvasirError) and reason in str(done.exception)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def server(induction_model, measured):
    """Serves what the report measured and passed, and is told so."""
    cache = ENGINE["cache"] | {"kv_cache_dtype": {"k": "bf16", "v": "bf16"}, "block_size": 32}
    engine = ENGINE | {"model": str(induction_model), "cache": cache}
    with running_server(engine, {"quality_report": str(measured[0])}) as live:
        yield live


def test_what_was_measured_and_passed_is_served(server: LiveServer, measured):
    assert server.ready["effective_config"]["quality_report"] == str(measured[0])


def test_two_servers_are_compared_on_what_they_say(server: LiveServer, tmp_path):
    output = tmp_path / "quality.json"
    done = quality(
        *("--max-model-len", 512, "--no-html", "--measures", "kl,passkey", "--output", output),
        *("--setting", f"a={server.url}/v1", "--setting", f"b={server.url}/v1", "--min-passkey", "0.9"),
        cwd=tmp_path,
    )
    assert done.exit_code == 0, done.output
    assert "only servers were asked: kl" in done.stdout
    measurements = read_result(output).measurements
    assert measurements["order"] == ["a", "a again", "b"] and measurements["skipped"] == ["kl"]
    passkeys = measurements["measures"]["passkey"]["settings"]
    found = {name: figures["overall"]["found"]["value"] for name, figures in passkeys.items()}
    assert found == {"a": 1, "a again": 1, "b": 1}


def test_a_server_beside_the_model_here(server: LiveServer, induction_model, tmp_path):
    """The same weights, over HTTP and in this process: the same keys found, and its text read by the reference."""
    output = tmp_path / "quality.json"
    done = quality(
        *(induction_model, "--threads", 1, "--max-model-len", 512, "--no-html", "--output", output),
        *("--measures", "kl,passkey,degeneration", "--setting", f"there={server.url}/v1"),
        cwd=tmp_path,
    )
    assert done.exit_code == 0, done.output
    measures = read_result(output).measurements["measures"]
    assert "there" not in measures["kl"]["settings"]
    assert measures["passkey"]["settings"]["there"]["overall"]["found"]["value"] == 1
    text = measures["degeneration"]["settings"]["there"]["overall"]
    assert text["improbable_rise"]["value"] == pytest.approx(0.0, abs=0.02)


def test_a_server_that_is_not_there_is_refused():
    with pytest.raises(KvasirError, match="cannot be asked for its models"):
        ServerSubject("gone", "http://127.0.0.1:9/v1")


def test_a_request_the_server_refuses_names_the_server(server: LiveServer):
    subject = ServerSubject("there", f"{server.url}/v1")
    with pytest.raises(KvasirError, match="did not answer"):
        subject.ask([Chat(turns=("too long " * 2000,), max_tokens=4)])
    subject.close()


SERVE = ("--threads", 1, "--max-model-len", 512, "--kv-cache-memory", "48MiB", "--port", 0)


def test_serving_what_failed_its_gate_is_refused(measured, induction_model, tmp_path):
    report, _ = measured
    flags = ("--kv-cache-dtype", "fp16", "--quality-report", report)
    done = kvasir("serve", induction_model, *SERVE, *flags, cwd=tmp_path)
    assert done.returncode == 1
    assert "failed its gate: half: mean KL" in " ".join(done.stderr.split())


def test_a_report_that_cannot_be_read_is_found_before_anything_is_loaded(tmp_path):
    engine = make_engine_config(model=str(tmp_path / "no model"))
    with pytest.raises(ConfigError, match="quality report"):
        run_server(engine, ServerConfig(port=0, quality_report=str(tmp_path / "none.json")))


def test_a_report_can_be_ignored_and_that_is_shown(tmp_path):
    engine = make_engine_config(model=str(tmp_path / "no model"))
    config = ServerConfig(port=0, quality_report=str(tmp_path / "none.json"), ignore_quality_report=True)
    assert config.effective()["quality_report"].endswith("none.json (ignored)")
    with pytest.raises(ModelError):
        run_server(engine, config)


def test_planted_subjects_are_not_mistaken_for_local_ones():
    assert not planted_lab(a=lambda chat: "", b=lambda chat: "").can_score
