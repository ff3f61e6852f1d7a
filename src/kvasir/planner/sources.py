"""Finds the model a person names: a config.json, a folder, a GGUF file, a built-in card, a Hugging Face id."""

import difflib
import json
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvasir.core.errors import ModelError
from kvasir.planner.config_reader import read_config
from kvasir.planner.gguf_shape import read_gguf
from kvasir.planner.model_shape import ModelShape

_HF_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_INDEX = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100 << 20

HubFile = Callable[[str, str], Path | None]
"""(model id, file name) -> a local copy, or None when there is no such file.  Raises ``ModelError`` without access."""


def find_model(name: str, hub_file: HubFile) -> ModelShape:
    """The shape of ``name``; nothing is downloaded but configs.  Raises ``ModelError`` when it cannot be had.

    A path wins over a built-in card, a card over the hub, so that everything in the list works without a network.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _from_folder(path.resolve())
    if path.is_file():
        return _from_file(path)
    card = find_model_card(name)
    if card is not None:
        return card
    if _HF_ID.fullmatch(name):
        return _from_hub(name, hub_file)
    close = difflib.get_close_matches(_folded(name), _by_name(), n=3)
    hint = " or ".join(dict.fromkeys(str(_by_name()[match]["name"]) for match in close))
    advice = f"did you mean {hint}?" if hint else "--list-models names the built-in ones."
    raise ModelError(
        f"There is no model {name!r}: give a folder, a config.json, a .gguf file, a built-in name or an owner/name id; "
        f"{advice}"
    )


def model_cards() -> list[dict[str, Any]]:
    """The built-in models: ``name``, ``aliases`` and the fields of ``config`` that planning reads."""
    return list(_read_cards())


def model_card_config(name: str) -> dict[str, Any] | None:
    """The config fields of a built-in model."""
    entry = _by_name().get(_folded(name))
    return None if entry is None else dict(entry["config"])


def find_model_card(name: str) -> ModelShape | None:
    entry = _by_name().get(_folded(name))
    return None if entry is None else read_config(entry["config"], entry["name"], "built-in card")


@cache
def _read_cards() -> tuple[dict[str, Any], ...]:
    text = files("kvasir.planner").joinpath("model_cards.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["models"])


@cache
def _by_name() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for entry in _read_cards():
        for name in (entry["name"], entry["name"].split("/")[1], *entry["aliases"]):
            found.setdefault(_folded(name), entry)
    return found


def _folded(name: str) -> str:
    return name.lower().replace("_", "-").replace(" ", "-")


def _from_file(path: Path) -> ModelShape:
    if path.suffix.lower() == ".gguf":
        return read_gguf(path)
    if path.suffix.lower() == ".json":
        return read_config(_read_json(path), path.parent.name or path.stem, str(path.name))
    raise ModelError(f"{path} is neither a .gguf file nor a config.json.")


def _from_folder(folder: Path) -> ModelShape:
    config = folder / "config.json"
    if not config.is_file():
        raise ModelError(f"The folder {folder} has no config.json.")
    shape = read_config(_read_json(config), folder.name, "config.json")
    return replace(shape, stored_weight_bytes=_folder_weight_bytes(folder))


def _folder_weight_bytes(folder: Path) -> int | None:
    """What the safetensors files of the folder hold, from their headers or their index."""
    index = folder / _INDEX
    if index.is_file():
        return _index_bytes(index)
    parts = [_safetensors_bytes(file) for file in sorted(folder.glob("*.safetensors"))]
    return sum(parts) if parts else None


def _index_bytes(index: Path) -> int | None:
    total = _read_json(index).get("metadata", {}).get("total_size")
    return int(total) if isinstance(total, int | float) else None


def _safetensors_bytes(file: Path) -> int:
    """Bytes of the tensors: the file without its header."""
    with file.open("rb") as handle:
        start = handle.read(8)
        if len(start) != 8 or struct.unpack("<Q", start)[0] > _MAX_HEADER_BYTES:
            raise ModelError(f"{file} is not a safetensors file.")
        return file.stat().st_size - 8 - struct.unpack("<Q", start)[0]


def _from_hub(model_id: str, hub_file: HubFile) -> ModelShape:
    config = hub_file(model_id, "config.json")
    if config is None:
        raise ModelError(f"{model_id} has no config.json on the hub.")
    index = hub_file(model_id, _INDEX)
    shape = read_config(_read_json(config), model_id, "Hugging Face config.json")
    return replace(shape, stored_weight_bytes=None if index is None else _index_bytes(index))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}).") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} holds no JSON object.")
    return values
