"""Result files: one JSON per measurement, with the command that makes it again and the claims that rest on it."""

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Self

from kvasir.claims.machine import machine_card
from kvasir.core.errors import KvasirError


class ResultFileError(KvasirError):
    """A result file that does not have the agreed form."""

    code = "invalid_result_file"


class Better(Enum):
    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One figure with its target.  ``target`` None: reported, not promised."""

    name: str
    value: float
    unit: str
    better: Better
    target: float | None = None

    @property
    def is_met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.better is Better.LOWER else self.value >= self.target

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "target": self.target,
            "better": self.better.value,
            "met": self.is_met,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(
            name=data["name"],
            value=float(data["value"]),
            unit=data["unit"],
            better=Better(data["better"]),
            target=None if data["target"] is None else float(data["target"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """What one file says.  ``runs`` is how many times the measured thing was repeated."""

    name: str
    command: str
    commit: str
    date: str
    machine: dict[str, Any]
    runs: int
    measurements: dict[str, Any]
    claims: tuple[Claim, ...]


@dataclass(kw_only=True)
class ResultWriter:
    """Collects measurements and claims, then writes them once.

    ``path`` is the JSON file; its folder is made if missing.  ``command`` defaults to how this process was started.
    """

    path: Path
    runs: int = 1
    command: str = ""
    measurements: dict[str, Any] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)

    def claim(self, name: str, value: float, unit: str, *, better: Better, target: float | None = None) -> Claim:
        claim = Claim(name=name, value=_rounded(value), unit=unit, better=better, target=target)
        self.claims.append(claim)
        return claim

    def write(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = {
            "command": self.command or _this_command(),
            "commit": current_commit(self.path.parent),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine_card(),
            "runs": self.runs,
            "measurements": _rounded_tree(self.measurements),
            "claims": [claim.as_json() for claim in self.claims],
        }
        self.path.write_text(json.dumps(data, indent=1) + "\n")
        return self.path


def read_result(path: Path) -> ResultFile:
    """Raises ``ResultFileError`` when it is not a result file, or when a stored ``met`` contradicts its figures."""
    try:
        data = json.loads(path.read_text())
        claims = tuple(Claim.from_json(entry) for entry in data["claims"])
        stored = [entry["met"] for entry in data["claims"]]
        result = ResultFile(
            name=path.stem,
            command=data["command"],
            commit=data["commit"],
            date=data["date"],
            machine=data["machine"],
            runs=data["runs"],
            measurements=data["measurements"],
            claims=claims,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultFileError(f"{path} is not a result file: {error!r}.") from error
    for claim, met in zip(claims, stored, strict=True):
        if claim.is_met is not met:
            raise ResultFileError(f"{path} says that {claim.name!r} is met={met}, but its own figures say otherwise.")
    return result


def read_results(folder: Path) -> list[ResultFile]:
    """Every ``*.json`` of ``folder``, by name."""
    return [read_result(path) for path in sorted(folder.glob("*.json"))]


def current_commit(folder: Path) -> str:
    """The commit checked out around ``folder``, with ``-dirty`` when tracked files differ from it; or "unknown"."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return "unknown"
    # Result files written a moment ago do not make the measured code dirty.
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)bench/results")
    return f"{commit}-dirty" if changed else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _this_command() -> str:
    program = Path(sys.argv[0])
    if program.suffix == ".py":
        root = Path.cwd()
        shown = program.resolve()
        name = shown.relative_to(root).as_posix() if shown.is_relative_to(root) else program.name
        return shlex.join(["python", name, *sys.argv[1:]])
    return shlex.join([program.name, *sys.argv[1:]])


def _rounded(value: float) -> float:
    """Five significant digits: more would be noise written down."""
    return float(f"{value:.5g}")


def _rounded_tree(value: Any) -> Any:
    if isinstance(value, float):
        return _rounded(value)
    if isinstance(value, dict):
        return {key: _rounded_tree(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded_tree(entry) for entry in value]
    return value
