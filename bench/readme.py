"""Writes README's generated blocks: the trees from docstrings, the measured table from result files."""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from kvasir.claims.quality_report import is_quality, quality_table
from kvasir.claims.result_file import Better, Claim, ResultFile, read_result

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "kvasir"
README = ROOT / "README.md"

# Rooms in reading order; others follow by name.
ROOMS = (
    *("core", "kv", "scheduling", "tiers", "formats", "kernels", "models", "compression", "text", "engine", "server"),
    *("cli", "workload", "claims", "hardware", "planner", "simulator", "loadtest", "lab", "deploy"),
)
TOP_LEVEL = {
    "Makefile": "run, demo, test, check, bench, peers, bench-peers, claims: each does all its own set-up in .venv",
    "pyproject.toml": "the package, its tools, and the import contracts",
    "CMakeLists.txt": "builds the C++ kernels",
    ".ci/run": "`make check`, then `make test`",
}
FOLDERS = {
    "docs": "why things are as they are",
    "bench": "measurements that anyone can repeat; results in bench/results",
    "tests": "sorted by what they hold the house to",
}
TEST_FOLDERS = {
    "law": "the house rules: imports, budgets, words, README, result files",
    "unit": "one module at a time",
    "properties": "state machines and bounds, attacked by Hypothesis",
    "conformance": "one suite for every kernel and every format",
    "oracle": "answers compared with Hugging Face transformers",
    "server": "the HTTP surface, through the official client",
    "peers": "the bench that runs other programs beside Kvasir",
    "cases": "faults seen in the wild, one test each",
}


@cache
def files_under(folder: Path, pattern: str) -> tuple[Path, ...]:
    """Files of the repository: what git tracks, so that a draft is not advertised; without git, what is there."""
    found = sorted(folder.rglob(pattern))
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if done.returncode:
        return tuple(found)
    tracked = {ROOT / name for name in done.stdout.split("\0")}
    return tuple(path for path in found if path in tracked)


def purpose(docstring: str | None) -> str:
    """The first sentence of a docstring, without its full stop."""
    paragraph = " ".join((docstring or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s+(?=[A-Z`])", paragraph)[0].removesuffix(".")


def module_purpose(path: Path) -> str:
    return purpose(ast.get_docstring(ast.parse(path.read_text())))


def rooms_tree() -> str:
    """The house at a glance: what lies at the top, and every room of the package."""
    lines: list[tuple[str, str]] = list(TOP_LEVEL.items())
    lines.append(("docs/", FOLDERS["docs"]))
    lines.append(("src/kvasir/", module_purpose(PACKAGE / "__init__.py")))
    lines += [(f"  {room.name}/", module_purpose(room / "__init__.py")) for room in rooms()]
    lines.append(("bench/", FOLDERS["bench"]))
    lines.append(("tests/", FOLDERS["tests"]))
    lines += [(f"  {name}/", text) for name, text in TEST_FOLDERS.items()]
    return _aligned(lines)


def files_tree() -> str:
    """Every file with its purpose, room by room."""
    lines: list[tuple[str, str]] = []
    for path in files_under(ROOT / "docs", "*.md"):
        lines.append((f"docs/{path.name}", path.read_text().splitlines()[0].removeprefix("# ")))
    for room in rooms():
        lines += _room_lines(room, depth=0)
    lines.append(("bench/", FOLDERS["bench"]))
    scripts = [path for path in files_under(ROOT / "bench", "*.py") if path.parent == ROOT / "bench"]
    lines += [(f"  {path.name}", module_purpose(path)) for path in scripts]
    for path in files_under(ROOT / "bench", "__init__.py"):
        if path.parent.parent == ROOT / "bench":
            lines += _room_lines(path.parent, depth=1)
    return _aligned(lines)


def rooms() -> list[Path]:
    """The package's rooms in reading order."""
    found = [path.parent for path in files_under(PACKAGE, "__init__.py") if path.parent.parent == PACKAGE]
    return sorted(found, key=lambda room: ROOMS.index(room.name) if room.name in ROOMS else len(ROOMS))


def _aligned(lines: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in lines) + 2
    return "```text\n" + "\n".join(f"{name:<{width}}{text}".rstrip() for name, text in lines) + "\n```"


def _room_lines(folder: Path, depth: int) -> list[tuple[str, str]]:
    indent = "  " * depth
    lines = [(f"{indent}{folder.name}/", module_purpose(folder / "__init__.py"))]
    modules = files_under(folder, "*.py")
    inner = {path.parent for path in modules if path.parent.parent == folder and path.name == "__init__.py"}
    for path in sorted(inner | {path for path in modules if path.parent == folder and path.name != "__init__.py"}):
        if path in inner:
            lines += _room_lines(path, depth + 1)
        else:
            lines.append((f"{indent}  {path.name}", module_purpose(path)))
    return lines


def measured_table() -> str:
    """Every claim of every committed result file, with the command that measures it again."""
    rows = ["| what | measured | target | result file | made by |", "|---|---|---|---|---|"]
    for result in _results():
        for claim in result.claims:
            if is_quality(result) and claim.target is None:
                continue  # they have a table of their own
            link = f"[{result.name}.json](bench/results/{result.name}.json)"
            rows.append(f"| {claim.name} | {_shown(claim)} | {_target(claim)} | {link} | `{result.command}` |")
    return "\n".join(rows) if len(rows) > 2 else "No result file has been committed yet."


def quality_block() -> str:
    """What every setting of every committed quality report cost."""
    return quality_table(_results())


def _results() -> list[ResultFile]:
    return [read_result(path) for path in files_under(ROOT / "bench" / "results", "*.json")]


def _shown(claim: Claim) -> str:
    missed = " (missed)" if claim.is_met is False else ""
    return f"{claim.value:g} {claim.unit}{missed}"


def _target(claim: Claim) -> str:
    if claim.target is None:
        return ""
    return f"{'≤' if claim.better is Better.LOWER else '≥'} {claim.target:g} {claim.unit}"


BLOCKS: dict[str, Callable[[], str]] = {
    "measured": measured_table,
    "quality": quality_block,
    "rooms": rooms_tree,
    "files": files_tree,
}


def with_blocks(text: str) -> str:
    """``text`` with everything between ``<!-- NAME -->`` and ``<!-- /NAME -->`` made anew."""
    for name, make in BLOCKS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"README has no {name} block")
        text = pattern.sub(lambda match, made=make(): f"{match[1]}{made}\n{match[2]}", text)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when README is out of date")
    arguments = parser.parse_args()
    text = README.read_text()
    made = with_blocks(text)
    if arguments.check:
        return int(text != made)
    README.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
