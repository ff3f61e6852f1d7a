"""Reads the bounds of docs/numerics.md, so that the page and the tests cannot drift apart."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "numerics.md"


def read_tolerances() -> dict[tuple[str, str], float]:
    """(kernel, measure) -> bound, from the table under "Kernel tolerances"."""
    section = PAGE.read_text(encoding="utf-8").split("## Kernel tolerances")[1].split("\n## ")[0]
    rows = [line.strip().strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    return {(kernel.strip(), measure.strip()): float(bound) for kernel, measure, bound in rows}


TOLERANCES = read_tolerances()
