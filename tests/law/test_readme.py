"""Law: README shows what exists: its tree is the house, its figures are the committed result files."""

import re
import subprocess
import sys

from house import PACKAGE, ROOT, tracked_files

README = ROOT / "README.md"
FIGURE = re.compile(r"\d[\d.,]*\s*(tok/s|tokens/s|ms|GB/s|GiB/s|req/s|×)|\d+(\.\d+)?\s*x (faster|slower|less|more)")


def block(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", README.read_text(), re.DOTALL)
    assert found, f"README has no {name} block"
    return found[1]


def test_readme_is_up_to_date() -> None:
    """Tree and table are what the sources and result files say now; ``make readme`` writes them anew."""
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "readme.py", "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"run `make readme`: {done.stdout}{done.stderr}"


def test_tree_has_every_module() -> None:
    tree = block("files")
    missing = [
        path.relative_to(PACKAGE).as_posix()
        for path in tracked_files(PACKAGE, "*.py")
        if path.name != "__init__.py" and not re.search(rf"^ *{re.escape(path.name)} +\S", tree, re.MULTILINE)
    ]
    assert missing == []


def test_every_room_has_a_purpose() -> None:
    rooms = [path.parent.name for path in tracked_files(PACKAGE, "__init__.py") if path.parent.parent == PACKAGE]
    assert len(rooms) >= 10
    for room in rooms:
        assert re.search(rf"^  {room}/ +\S.{{20,}}$", block("rooms"), re.MULTILINE), room


def test_figures_stand_in_the_measured_block_only() -> None:
    text = README.read_text().replace(block("measured"), "").replace(block("files"), "")
    assert [match[0] for match in FIGURE.finditer(text)] == []


def test_named_documents_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert {"docs/architecture.md", "docs/kv.md", "CONTRIBUTING.md", "LICENSE"} <= set(links)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_named_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?:`|^)make ([a-z]+)", README.read_text(), re.MULTILINE))
    assert {"run", "test", "bench", "claims"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
