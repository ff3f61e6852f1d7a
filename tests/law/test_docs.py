"""Law: what the documents count is what the code counts, and every invariant names a test that exists."""

import ast
import re
from pathlib import Path

import pytest
from house import ROOT, parsed

from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout

KV = (ROOT / "docs" / "kv.md").read_text()
AUDIT = (ROOT / "src" / "kvasir" / "kv" / "audit.py").read_text()
GIB = 1 << 30


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.parametrize("dtype", list(KVDtype), ids=lambda dtype: dtype.value)
def test_worked_example_is_what_the_spec_says(dtype: KVDtype) -> None:
    geometry = KVGeometry(num_layers=30, num_kv_heads=3, head_dim=64, sliding_windows=(None,) * 30)
    layout = KVLayout.from_geometry(geometry, block_size=16, k_dtype=dtype, v_dtype=dtype)
    (spec,) = layout.groups
    row = re.search(rf"^\| {dtype.value} \|(.*)\|$", KV, re.MULTILINE)
    assert row, f"docs/kv.md has no row for {dtype.value}"
    num_blocks = GIB // spec.block_bytes
    assert [number(cell) for cell in row[1].split("|")] == [
        sum(tensor.num_bytes for tensor in spec.tile_tensors),
        spec.block_bytes,
        spec.bytes_per_token,
        num_blocks,
        num_blocks * spec.block_size,
    ]


def test_sentence_about_one_gib_is_true() -> None:
    found = re.search(r"holds ([\d.]+) conversations of the model's full 8,192 tokens, or (\d+) of 350", KV)
    assert found
    num_blocks = GIB // 737_280
    assert float(found[1]) == round(num_blocks * 16 / 8192, 1)
    assert int(found[2]) == num_blocks // -(-350 // 16)


def invariants() -> dict[str, str]:
    """Name -> the last cell of its row: the tests that hold it."""
    rows = re.findall(r"^\| (I\d+) \|.*\| ([^|]+) \|$", KV, re.MULTILINE)
    return dict(rows)


def test_invariants_are_numbered_without_gaps() -> None:
    names = list(invariants())
    assert len(names) >= 10
    assert names == [f"I{i}" for i in range(1, len(names) + 1)]


def test_the_audit_checks_only_written_invariants() -> None:
    audited = set(re.findall(r"\bI\d+\b", AUDIT))
    assert audited == {f"I{i}" for i in range(1, len(audited) + 1)}
    assert audited <= set(invariants())


@pytest.mark.parametrize("name", list(invariants()))
def test_every_invariant_names_tests_that_exist(name: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", invariants()[name])
    assert named, f"{name} names no test"
    for file, function in named:
        assert function in functions_of(ROOT / file), f"{name}: {file} has no {function}"


def functions_of(path: Path) -> set[str]:
    """Names of functions, methods and classes in ``path``."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(parsed(path)) if isinstance(node, kinds)}
