"""One flag: its name, kind, default and help, and how a written value becomes what ``EngineConfig`` holds."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kvasir.core.errors import ConfigError
from kvasir.engine.byte_size import format_bytes, parse_bytes
from kvasir.engine.config import EngineConfig
from kvasir.kv.eviction import EvictionRule, parse_eviction
from kvasir.kv.format_pair import FormatPair, parse_pair
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.retention import Retention, parse_retention
from kvasir.kv.sparse_read import SparseRead, parse_sparse_read

FlagValue = str | int | float | bool | Enum | EvictionRule | FormatPair | Retention | SparseRead

_DTYPE_SYNONYMS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class FlagKind(Enum):
    """What a value looks like; the command line picks the option's type by it."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    SWITCH = "switch"
    SIZE = "size"
    CHOICE = "choice"
    EVICTION = "rule"
    RETENTION = "retention"
    FORMATS = "formats of K and V"
    SPARSE_READ = "number of blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One setting.  ``path`` is where it lives in ``EngineConfig``, which also holds its default.

    ``choices`` are the values of a CHOICE as written.  ``automatic`` is the word for a default of None ("auto" or a
    description), accepted as a value where it is one word.  ``aliases`` are other names it answers to.
    """

    name: str
    path: str
    kind: FlagKind
    help: str
    section: str
    choices: tuple[str, ...] = ()
    automatic: str | None = None
    minimum: int | None = None
    enum: type[Enum] | None = None
    aliases: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def default(self) -> Any:
        """The parsed default, from ``EngineConfig``."""
        return read_path(EngineConfig(), self.path)

    @property
    def default_text(self) -> str:
        return self.show(self.default)

    def show(self, value: Any) -> str:
        """``value`` as a person would write it."""
        if value is None:
            return self.automatic or "none"
        if isinstance(value, Enum):
            return str(value.value)
        if isinstance(value, bool):
            return "on" if value else "off"
        return format_bytes(value) if self.kind is FlagKind.SIZE else str(value)

    def parse(self, value: FlagValue) -> Any:
        """The value as ``EngineConfig`` holds it, from text or a value of the right type.  Raises ``ConfigError``."""
        if self.automatic is not None and value == self.automatic:
            return None
        if self.enum is not None and isinstance(value, self.enum):
            return value
        try:
            parsed = _PARSERS[self.kind](self, value)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self.option} {value!r}: {error}.") from error
        if self.minimum is not None and parsed < self.minimum:
            raise ConfigError(f"{self.option} must be at least {self.minimum}, got {value}.")
        return parsed


def _parse_integer(_: Flag, value: FlagValue) -> int:
    if isinstance(value, str):
        try:
            return int(value.replace("_", ""))
        except ValueError:
            raise ValueError("a whole number is expected") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("a whole number is expected")
    return value


def _parse_number(_: Flag, value: FlagValue) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError("a number is expected")
    try:
        return float(value)
    except ValueError:
        raise ValueError("a number is expected") from None


def _parse_switch(_: Flag, value: FlagValue) -> bool:
    if isinstance(value, bool):
        return value
    try:
        return _TRUTH[str(value).lower()]
    except KeyError:
        raise ValueError("on or off is expected") from None


def _parse_size(_: Flag, value: FlagValue) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError("a size such as '2GiB' or a whole number of bytes is expected")
    return parse_bytes(value)


def _parse_text(_: Flag, value: FlagValue) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("text is expected")
    return value


def _parse_choice(flag: Flag, value: FlagValue) -> Any:
    text = str(value).lower()
    text = _DTYPE_SYNONYMS.get(text, text)
    if text not in flag.choices:
        known = (flag.automatic, *flag.choices) if flag.automatic else flag.choices
        raise ValueError(f"choose one of {', '.join(known)}")
    return flag.enum(text) if flag.enum is not None else int(text)


def _parse_eviction(_: Flag, value: FlagValue) -> EvictionRule:
    return value if isinstance(value, EvictionRule) else parse_eviction(str(value))


def _parse_formats(_: Flag, value: FlagValue) -> FormatPair:
    if isinstance(value, FormatPair):
        return value
    return parse_pair(str(value.value) if isinstance(value, KVDtype) else str(value))


def _parse_retention(_: Flag, value: FlagValue) -> Retention:
    return value if isinstance(value, Retention) else parse_retention(str(value))


def _parse_sparse_read(_: Flag, value: FlagValue) -> SparseRead:
    return value if isinstance(value, SparseRead) else parse_sparse_read(str(value))


_PARSERS: dict[FlagKind, Callable[[Flag, FlagValue], Any]] = {
    FlagKind.TEXT: _parse_text,
    FlagKind.INTEGER: _parse_integer,
    FlagKind.NUMBER: _parse_number,
    FlagKind.SWITCH: _parse_switch,
    FlagKind.SIZE: _parse_size,
    FlagKind.CHOICE: _parse_choice,
    FlagKind.EVICTION: _parse_eviction,
    FlagKind.RETENTION: _parse_retention,
    FlagKind.FORMATS: _parse_formats,
    FlagKind.SPARSE_READ: _parse_sparse_read,
}


def read_path(config: EngineConfig, path: str) -> Any:
    """The field of ``config`` that ``path`` (names with dots) leads to."""
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value
