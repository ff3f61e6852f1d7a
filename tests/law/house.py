"""Where the house's files are: what the law tests walk over."""

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "kvasir"
TEXT_SUFFIXES = {".py", ".md", ".toml", ".cpp", ".hpp", ".h", ".txt", ".json", ".jinja", ""}
_SKIPPED_FOLDERS = {".git", ".venv", "build", "dist", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis"}


def python_files() -> list[Path]:
    """Every Python file of the package, in order."""
    return sorted(PACKAGE.rglob("*.py"))


def tracked_files(folder: Path, pattern: str) -> list[Path]:
    """Files under ``folder`` that belong to the repository: drafts that git does not know are nobody's promise yet."""
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    tracked = {ROOT / name for name in done.stdout.split("\0")}
    return sorted(path for path in folder.rglob(pattern) if done.returncode or path in tracked)


def text_files() -> list[Path]:
    """Every text file a reader of the repository meets."""
    found = []
    for folder in (ROOT / "src", ROOT / "tests", ROOT / "bench", ROOT / "docs", ROOT / ".ci"):
        found += [path for path in folder.rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    return sorted(path for path in found if path.suffix in TEXT_SUFFIXES and not _SKIPPED_FOLDERS & set(path.parts))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))
