"""A ``HeadProfile`` as JSON and back; what is read is believed in nothing.  No torch."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvasir.compression.profile import FORMAT_NAME, VERSION, ConstantsFile, HeadProfile, HeadTable
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.head_group import HeadGroup
from kvasir.kv.retention import parse_retention

_DIGITS = 6
"""Significant digits of a score: enough to rank heads, and the same text from the same run."""


class ProfileError(Exception):
    """What is wrong with a field, as half a sentence."""


def profile_to_json(profile: HeadProfile) -> dict[str, Any]:
    """Plain JSON data, heads in order; ``path`` is not part of it."""
    data: dict[str, Any] = {
        "format": FORMAT_NAME,
        "version": VERSION,
        "model": {
            "name": profile.model_name,
            "digest": profile.model_digest,
            "num_layers": profile.num_layers,
            "num_kv_heads": profile.num_kv_heads,
            "head_dim": profile.head_dim,
        },
        "recipe": dict(profile.recipe),
        "groups": [
            {
                "retention": str(group.retention),
                "k_dtype": group.k_dtype.value,
                "v_dtype": group.v_dtype.value,
                "heads": [list(head) for head in sorted(group.heads)],
            }
            for group in profile.groups
        ],
        "scores": {
            name: [[float(f"{value:.{_DIGITS}g}") for value in row] for row in table]
            for name, table in profile.scores.items()
        },
    }
    if profile.constants is not None:
        data["constants"] = {"file": profile.constants.name, "sha256": profile.constants.sha256}
    return data


def profile_from_json(data: Mapping[str, Any], path: Path | None = None) -> HeadProfile:
    """Raises ``ProfileError`` for the first field that is missing or not what it must be."""
    model = _field(data, "model", dict)
    num_layers, num_kv_heads, head_dim = (_count(model, name) for name in ("num_layers", "num_kv_heads", "head_dim"))
    groups = _field(data, "groups", list)
    if not groups:
        raise ProfileError("it has no groups.")
    scores = _field(data, "scores", dict)
    return HeadProfile(
        model_name=_field(model, "name", str),
        model_digest=_field(model, "digest", str),
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        groups=tuple(_group(entry) for entry in groups),
        recipe=_field(data, "recipe", dict),
        scores={name: _table(name, table, num_layers, num_kv_heads) for name, table in scores.items()},
        constants=_constants(_field(data, "constants", dict)) if "constants" in data else None,
        path=path,
    )


def _field(data: Mapping[str, Any], name: str, kind: type) -> Any:
    value = data.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ProfileError(f"{name!r} must be of type {kind.__name__}, and is {value!r:.40}.")
    return value


def _count(data: Mapping[str, Any], name: str) -> int:
    value = _field(data, name, int)
    if value < 1:
        raise ProfileError(f"{name!r} must be at least 1, and is {value}.")
    return value


def _group(entry: Any) -> HeadGroup:
    if not isinstance(entry, dict):
        raise ProfileError(f"a group must be an object, and is {entry!r:.40}.")
    heads = _field(entry, "heads", list)
    if not all(isinstance(head, list) and [type(number) for number in head] == [int, int] for head in heads):
        raise ProfileError("the heads of a group must be pairs of whole numbers: layer and KV head.")
    return HeadGroup(
        heads=tuple((layer, head) for layer, head in heads),
        retention=_parsed(entry, "retention", parse_retention),
        k_dtype=_parsed(entry, "k_dtype", KVDtype),
        v_dtype=_parsed(entry, "v_dtype", KVDtype),
    )


def _parsed(entry: Mapping[str, Any], name: str, parse: Callable[[str], Any]) -> Any:
    value = _field(entry, name, str)
    try:
        return parse(value)
    except ValueError as error:
        raise ProfileError(f"{name!r} of a group cannot be {value!r:.40} ({error}).") from None


def _table(name: str, table: Any, num_layers: int, num_kv_heads: int) -> HeadTable:
    is_right = (
        isinstance(table, list)
        and len(table) == num_layers
        and all(isinstance(row, list) and len(row) == num_kv_heads for row in table)
        and all(type(value) in (int, float) and math.isfinite(value) for row in table for value in row)
    )
    if not is_right:
        raise ProfileError(f"the score {name!r} must be {num_layers} rows of {num_kv_heads} finite numbers.")
    return tuple(tuple(float(value) for value in row) for row in table)


def _constants(entry: Mapping[str, Any]) -> ConstantsFile:
    name = _field(entry, "file", str)
    if Path(name).name != name or not name:
        raise ProfileError(f"the constants must lie in the profile's own folder, and {name!r:.60} does not.")
    return ConstantsFile(name=name, sha256=_field(entry, "sha256", str))
