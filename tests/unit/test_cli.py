"""The command line as a person meets it: help, versions, wrong usage, refusals.  No model is loaded here."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kvasir
from kvasir.cli.main import COMMANDS
from kvasir.engine.flags import FLAGS, FlagKind


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvasir.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"} | environment,
    )


def squeezed(text: str) -> str:
    """Without white space, so that it does not matter where help was wrapped."""
    return "".join(text.split())


def test_help_names_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    for name, summary in COMMANDS.items():
        assert re.search(rf"^  {name} ", done.stdout, re.MULTILINE), name
        assert squeezed(name + summary) in squeezed(done.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    assert squeezed(COMMANDS[name]) in squeezed(done.stdout)
    assert "--help" in done.stdout


@pytest.mark.parametrize("name", ["serve", "chat", "generate"])
def test_every_engine_flag_is_an_option(name: str) -> None:
    text = squeezed(run(name, "--help").stdout)
    for flag in FLAGS:
        assert flag.option in text, flag.name
        assert squeezed(f"{flag.help} [default: {flag.default_text}]") in text, flag.name
        for choice in flag.choices:
            assert choice in text, f"{flag.name} {choice}"
        if flag.kind is FlagKind.SWITCH:
            assert f"--no-{flag.option[2:]}" in text


def test_demo_offers_only_what_it_does_not_decide() -> None:
    text = run("demo", "--help").stdout
    assert "--weight-dtype" in text
    assert "--scheduling" not in text
    assert "--enable-prefix-caching" not in text


def test_version() -> None:
    assert run("--version").stdout == f"kvasir {kvasir.__version__}\n"
    versions = json.loads(run("version", "--json").stdout)
    assert versions["kvasir"] == kvasir.__version__
    assert {"python", "torch", "transformers"} <= versions.keys()
    assert f"torch {versions['torch']}" in " ".join(run("version").stdout.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["serve", "--nonsense"], "No such option: --nonsense"),
        (["serve", "--block-size", "17"], "choose one of 16, 32, 64"),
        (["serve", "--max-num-seqs", "many"], "a whole number is expected"),
        (["chat", "--kv-cache-memory", "2 boxes"], "write for example 2GiB"),
        (["serve", "--port", "http"], "Invalid value for '--port'"),
        (["demo", "--turns", "1"], "Invalid value for '--turns'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_ends_with_2(arguments: list[str], sentence: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pull", "no/such/place"], "There is no model 'no/such/place'"),
        (["serve", "demo", "--model", "other"], "given twice"),
        (["serve", "--kv-cache-memory", "1GiB", "--memory-utilization", "0.5"], "give one of them"),
        (["serve", "--port", "70000"], "--port must be between 0 and 65535, got 70000."),
        (["serve", "--kv-allocation", "contiguous"], "add --no-enable-prefix-caching"),
        (["chat", "--temperature", "-1"], "temperature must be between 0.0 and 100.0, got -1.0."),
        (["generate", "no-such-file.jsonl"], "The requests in no-such-file.jsonl cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_refusal_is_one_sentence_and_ends_with_1(arguments: list[str], sentence: str) -> None:
    done = run(*arguments)
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_debug_shows_the_traceback() -> None:
    for done in (run("--debug", "pull", "no/such/place"), run("pull", "no/such/place", KVASIR_DEBUG="1")):
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert "ModelError: There is no model" in done.stderr


def test_answers_never_overwrite_the_requests(tmp_path: Path) -> None:
    requests = tmp_path / "requests.jsonl"
    requests.write_text('{"prompt": "x"}\n')
    done = run("generate", str(requests), "--output", str(requests))
    assert done.returncode == 1
    assert "would overwrite the requests" in done.stderr
    assert requests.read_text() == '{"prompt": "x"}\n'
