"""One line a measured round, so that a long measurement can be made in slices and nothing measured is lost."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Figures = dict[str, float | list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """``turn`` names the pass in which programs took turns: figures of one turn may be compared.  ``other_cores``:
    cores that processes of neither the bench nor this program kept busy."""

    workload: str
    contender: str
    turn: str
    seed: int
    figures: Figures
    tokens: list[list[int]]
    peak_bytes: int
    other_cores: float
    start_to_first_token_s: float
    about: dict[str, Any]
    commit: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A program that did not start or failed a workload, with its words."""

    workload: str
    contender: str
    turn: str
    error: str


def append(path: Path, entry: Record | Failure) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lines:
        lines.write(json.dumps({"kind": type(entry).__name__, **asdict(entry)}) + "\n")


def read(path: Path) -> tuple[list[Record], list[Failure]]:
    """All records and failures of a file, oldest first; none if there is no file."""
    records: list[Record] = []
    failures: list[Failure] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        fields = json.loads(line)
        if fields.pop("kind") == "Record":
            records.append(Record(**fields))
        else:
            failures.append(Failure(**fields))
    return records, failures
