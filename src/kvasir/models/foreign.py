"""A config.json as others write it: every field is read with its type checked, nothing is guessed."""

import math
from dataclasses import dataclass
from typing import Any

from kvasir.core.errors import ModelError


@dataclass(frozen=True, slots=True)
class ForeignConfig:
    """``values`` is the parsed JSON object, ``label`` what a refusal calls it.  A JSON null counts as absent."""

    values: dict[str, Any]
    label: str = "config.json"

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number above 0; ``ModelError`` when it is anything else, or absent without a default."""
        value = self._present(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"{self.label} has {name} = {value!r}; it must be a whole number above 0.")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0; ``ModelError`` when it is anything else, or absent without a default."""
        value = self._present(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise ModelError(f"{self.label} has {name} = {value!r}; it must be a number above 0.")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._present(name, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.label} has {name} = {value!r}; it must be true or false.")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One id, a list of ids, or nothing: () when absent."""
        value = self.values.get(name)
        found = value if isinstance(value, list) else [] if value is None else [value]
        if any(not isinstance(token, int) or isinstance(token, bool) or token < 0 for token in found):
            raise ModelError(f"{self.label} has {name} = {value!r}; it must be a token id or a list of token ids.")
        return tuple(found)

    def part(self, name: str) -> "ForeignConfig | None":
        """The object under ``name``, or None when it is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ModelError(f"{self.label} has {name} = {value!r}; it must be an object or null.")
        return ForeignConfig(value, f"{name} of {self.label}")

    def _present(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise ModelError(f"{self.label} has no {name}, which a model needs.")
        return default
