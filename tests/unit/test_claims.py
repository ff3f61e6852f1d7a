"""Result files: what is written is what is read, and a file cannot claim what its figures deny."""

import json
import subprocess
from pathlib import Path

import pytest

from kvasir.claims.machine import machine_card
from kvasir.claims.result_file import (
    Better,
    Claim,
    ResultFileError,
    ResultWriter,
    current_commit,
    read_result,
    read_results,
)


def write_example(path: Path) -> Path:
    writer = ResultWriter(path=path, runs=3, command="make example", measurements={"times_s": [1.23456789, 2.0]})
    writer.claim("speed", 41.98765432, "tok/s", better=Better.HIGHER, target=25)
    writer.claim("waste", 0.2, "share", better=Better.LOWER, target=0.05)
    writer.claim("size", 7.0, "MiB", better=Better.LOWER)
    return writer.write()


def test_round_trip(tmp_path: Path) -> None:
    result = read_result(write_example(tmp_path / "deep" / "example.json"))
    assert (result.name, result.command, result.runs) == ("example", "make example", 3)
    assert result.measurements == {"times_s": [1.2346, 2.0]}
    assert [claim.is_met for claim in result.claims] == [True, False, None]
    assert result.claims[0].value == 41.988
    assert read_results(tmp_path / "deep") == [result]


def test_every_agreed_field_is_there(tmp_path: Path) -> None:
    data = json.loads(write_example(tmp_path / "example.json").read_text())
    assert list(data) == ["command", "commit", "date", "machine", "runs", "measurements", "claims"]
    assert list(data["claims"][0]) == ["name", "value", "unit", "target", "better", "met"]


@pytest.mark.parametrize(
    ("better", "value", "is_met"),
    [
        (Better.LOWER, 1.0, True),
        (Better.LOWER, 1.1, False),
        (Better.HIGHER, 1.0, True),
        (Better.HIGHER, 0.9, False),
    ],
)
def test_a_target_is_met_at_the_bound(better: Better, value: float, is_met: bool) -> None:
    assert Claim(name="x", value=value, unit="s", better=better, target=1.0).is_met is is_met


def test_a_file_cannot_claim_what_its_figures_deny(tmp_path: Path) -> None:
    path = write_example(tmp_path / "example.json")
    path.write_text(path.read_text().replace('"value": 41.988', '"value": 4.1'))
    with pytest.raises(ResultFileError, match="'speed' is met=True, but its own figures say otherwise"):
        read_result(path)


@pytest.mark.parametrize("text", ["", "[]", '{"claims": []}', '{"claims": [{"name": 1}]}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ResultFileError, match="is not a result file"):
        read_result(path)


def test_commit_says_when_the_code_differs_from_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    assert current_commit(tmp_path) == "unknown"
    git("init", "-q")
    (tmp_path / "code.py").write_text("1")
    (tmp_path / "bench" / "results").mkdir(parents=True)
    (tmp_path / "bench" / "results" / "x.json").write_text("{}")
    git("add", ".")
    git("commit", "-qm", "first")
    head = git("rev-parse", "HEAD")
    assert current_commit(tmp_path / "bench" / "results") == head
    (tmp_path / "bench" / "results" / "x.json").write_text("{ }")
    assert current_commit(tmp_path) == head
    (tmp_path / "code.py").write_text("2")
    assert current_commit(tmp_path) == f"{head}-dirty"


def test_machine_card_is_json() -> None:
    card = machine_card()
    assert json.loads(json.dumps(card)) == card
    assert card["cpu"]
    assert card["num_cores"] >= 1  # type: ignore[operator]
