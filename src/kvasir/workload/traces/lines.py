"""Reads trace files line by line and says where a line is wrong."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvasir.workload.traces.trace import TraceError


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) for every line that is not blank.  Raises ``TraceError``."""
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                raise TraceError(f"{path.name} line {number} is not JSON ({error}).") from error
            if not isinstance(value, dict):
                raise TraceError(f"{path.name} line {number} is {type(value).__name__}, not an object.")
            yield number, value


def csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, columns by name) of every row.  Raises ``TraceError``."""
    with _open(path) as file:
        reader = csv.DictReader(file)
        for row in reader:
            yield reader.line_num, row


def count(path: Path, number: int, values: dict[str, Any], name: str, least: int) -> int:
    """``values[name]`` as a whole number of at least ``least``.  Raises ``TraceError``."""
    value = values.get(name)
    try:
        if isinstance(value, bool) or value is None:
            raise ValueError
        found = int(value)
        if found != float(value) or found < least:
            raise ValueError
    except (TypeError, ValueError):
        raise TraceError(
            f"{path.name} line {number} has {name} = {value!r}; a whole number of at least {least} is expected."
        ) from None
    return found


def seconds(path: Path, number: int, values: dict[str, Any], name: str) -> float:
    """``values[name]`` as a finite number of at least 0.  Raises ``TraceError``."""
    value = values.get(name)
    try:
        if isinstance(value, bool) or value is None:
            raise ValueError
        found = float(value)
        if not 0.0 <= found < float("inf"):
            raise ValueError
    except (TypeError, ValueError):
        raise TraceError(
            f"{path.name} line {number} has {name} = {value!r}; a time of at least 0 is expected."
        ) from None
    return found


def _open(path: Path):
    try:
        return path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise TraceError(f"The trace {path} cannot be read: {error.strerror or error}.") from error
