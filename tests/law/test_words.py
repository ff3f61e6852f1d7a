"""Law: the repository speaks of Kvasir alone: no machine's paths, no registry's hosts, no talk of how it was made."""

import re

import pytest
from house import shown, text_files

# In two pieces, so that this file does not break its own law.
FORBIDDEN = {
    "a package index's host": "|".join(
        ["py" r"pi\.org", "python" r"hosted\.org", "registry" r"\.npmjs", "deb" r"ian\.org"]
    ),
    "a path of one machine": r"/wo" r"rk/(main|shared|\.library)|/ro" r"ot/|/opt/(py" r"pi|wheels)",
    "how the work is organised": "|".join(
        [r"\bC" r"EO\b", r"\bbefore-" r"stop\b", r"\bhelper" r" session", r"\bissue" r" #?\d+\b"]
    ),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_speaks_of(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.IGNORECASE)
    files = text_files()
    assert len(files) > 30
    hits = [
        f"{shown(path)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert hits == []


def test_the_patterns_bite() -> None:
    assert re.search(FORBIDDEN["a path of one machine"], "see /wo" + "rk/shared/x")
    assert re.search(FORBIDDEN["a package index's host"], "https://py" + "pi.org/simple")
    assert re.search(FORBIDDEN["how the work is organised"], "the C" + "EO said")
