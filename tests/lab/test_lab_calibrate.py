"""Calibration of a model whose retrieval head was set by hand, through the command as a person runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab_models import IDLE_HEAD, RETRIEVAL_HEAD

from kvasir.compression.constants import constants_from_bytes, named_constants
from kvasir.compression.profile_file import constants_bytes, load_profile
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.retention import FULL, RetentionKind
from kvasir.models.digest import model_digest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, "-m", "kvasir.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )


@pytest.fixture(scope="module")
def profile_file(induction_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """KV heads: two in each of two layers; 14 % and 4.5 % of four are one and none."""
    path = tmp_path_factory.mktemp("profiles") / "induction.json"
    done = run(
        *("calibrate", str(induction_model), "--budget", "0.25", "--window", "128", "--threads", "1"),
        *("--output", str(path)),
    )
    assert done.returncode == 0, done.stderr
    assert "w   window:sinks=4,window=128" in done.stdout
    return path


def test_the_head_set_by_hand_is_found(profile_file: Path, induction_model: Path) -> None:
    profile = load_profile(str(profile_file))
    profile.check_model(model_digest(induction_model))
    assert profile.recipe["retrieval_heads"] == [list(RETRIEVAL_HEAD)]
    induction = profile.scores["induction"]
    assert induction[RETRIEVAL_HEAD[0]][RETRIEVAL_HEAD[1]] > 0.95
    assert induction[IDLE_HEAD[0]][IDLE_HEAD[1]] < 0.05
    whole, windowed = profile.groups
    assert whole.retention.kind is RetentionKind.FULL
    assert whole.heads == (RETRIEVAL_HEAD,)
    assert len(windowed.heads) == 3


def test_the_budget_is_kept_to_the_byte(profile_file: Path) -> None:
    """int8 heads have 260 bytes a token and side instead of 512; of 128 blocks a windowed head keeps 1 + 8 + 1."""
    recipe = load_profile(str(profile_file)).recipe
    assert recipe["context"] == 2048
    assert recipe["share_of_bf16"] == pytest.approx(260 / 512 * (1 + 3 * 10 / 128) / 4, abs=1e-6)
    assert recipe["share_of_bf16"] <= 0.25


def test_calibrating_twice_gives_the_same_files(profile_file: Path, induction_model: Path, tmp_path: Path) -> None:
    again = tmp_path / "induction.json"
    done = run(
        *("calibrate", str(induction_model), "--budget", "0.25", "--window", "128", "--threads", "1"),
        *("--output", str(again)),
    )
    assert done.returncode == 0, done.stderr
    assert again.read_bytes() == profile_file.read_bytes()
    assert constants_bytes(load_profile(str(again))) == constants_bytes(load_profile(str(profile_file)))


def test_formats_alone(induction_model: Path, tmp_path: Path) -> None:
    """Under a budget between 4 and 8 bits a head that does something gets 8, no idle one, and all keep all tokens."""
    path = tmp_path / "formats.json"
    done = run(
        *("calibrate", str(induction_model), "--window", "0", "--budget", "0.36", "--threads", "1"),
        *("--kv-cache-dtype", "int4", "--kv-cache-dtype", "int8", "--output", str(path)),
    )
    assert done.returncode == 0, done.stderr
    profile = load_profile(str(path))
    assert {group.retention for group in profile.groups} == {FULL}
    four, eight = profile.groups
    assert (four.k_dtype, eight.k_dtype) == (KVDtype.INT4, KVDtype.INT8)
    assert set(eight.heads) <= {(0, 0), RETRIEVAL_HEAD}
    assert set(named_constants(constants_from_bytes(constants_bytes(profile) or b""))) >= {"k_feedback", "v_sink"}


def test_show(profile_file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "map.png"
    done = run("profile", "show", str(profile_file), "--png", str(picture))
    assert done.returncode == 0, done.stderr
    assert "  head 0 wF\n  head 1 ww\n" in done.stdout
    assert picture.read_bytes()[:4] == b"\x89PNG"
    shown = run("profile", "show", str(profile_file), "--json")
    assert json.loads(shown.stdout) == json.loads(profile_file.read_text())


def test_refusals_are_one_sentence(induction_model: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("Rain falls on the roof.")
    for arguments, complaint in (
        (("--budget", "0.01"), "is below the"),
        (("--budget", "2"), "--budget must be above 0 and at most 1"),
        (("--kv-cache-dtype", "int9"), "there is no format 'int9'"),
        (("--text", str(short)), "give a longer --text"),
        (("--text", str(tmp_path / "none.txt")), "cannot be read"),
    ):
        done = run("calibrate", str(induction_model), "--output", str(tmp_path / "p.json"), *arguments)
        assert done.returncode == 1, (arguments, done.stdout)
        assert complaint in done.stderr
        assert "Traceback" not in done.stderr
    done = run("profile", "show", str(short))
    assert done.returncode == 1
    assert "is damaged" in done.stderr
