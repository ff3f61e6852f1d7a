"""Law: imports point downwards only, and the control plane starts without the heavy libraries."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from house import PACKAGE, ROOT

HEAVY = {"torch", "numpy", "transformers", "tokenizers", "fastapi", "matplotlib", "zmq"}
LIGHT_MODULES = ["kvasir", "kvasir.core", "kvasir.kv", "kvasir.scheduling"]


def modules_loaded_by(code: str) -> set[str]:
    """Top-level names in ``sys.modules`` after ``code`` ran in a fresh interpreter."""
    report = "\nimport json, sys\nprint(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_contracts_hold() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("package", LIGHT_MODULES)
def test_every_control_plane_module_is_light(package: str) -> None:
    folder = PACKAGE.joinpath(*package.split(".")[1:])
    # ``kvasir`` itself is its __init__ only; the rooms are all their modules.
    files = [folder / "__init__.py"] if package == "kvasir" else sorted(folder.glob("*.py"))
    names = [package if path.stem == "__init__" else f"{package}.{path.stem}" for path in files]
    loaded = modules_loaded_by("\n".join(f"import {name}" for name in names))
    assert loaded & HEAVY == set()


def test_settings_and_costs_are_light() -> None:
    loaded = modules_loaded_by("import kvasir.engine.config, kvasir.models.config, kvasir.models.cost")
    assert loaded & HEAVY == set()


def test_help_is_light() -> None:
    code = """
import sys
sys.argv = ["kvasir", "--help"]
from kvasir.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""
    assert modules_loaded_by(code) & HEAVY == set()


def test_the_probe_would_see_a_heavy_import() -> None:
    assert "numpy" in modules_loaded_by("import numpy")
