"""A setting under test: engine flags of its own, or a server somewhere, under a name for the tables."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvasir.core.errors import ConfigError
from kvasir.engine.flags import FLAGS
from kvasir.engine.pool_plan import LayoutChange
from kvasir.lab.fault import Fault

_FLAG_NAMES = frozenset(name for flag in FLAGS for name in (flag.name, *flag.aliases))
_KEY = re.compile(r"\s*([A-Za-z][\w-]*)\s*:(.*)", re.DOTALL)
_URL = re.compile(r"https?://", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """``flags`` by name of ``engine/flags.py``, as written, on top of those all settings share; or ``base_url`` of an
    OpenAI-compatible server.

    ``fault`` damages it on purpose, ``alter_layout`` makes a control of it: for measurements; no text asks for them.
    """

    name: str
    flags: Mapping[str, str] = field(default_factory=dict)
    base_url: str | None = None
    fault: Fault | None = None
    alter_layout: LayoutChange | None = None

    @property
    def is_local(self) -> bool:
        return self.base_url is None


def parse_setting(text: str) -> Setting:
    """``NAME=flag:value,flag:value`` or ``NAME=http://host:port/v1``.

    A comma begins the next flag where a flag's name and a colon follow it; any other comma belongs to the value, so
    ``mixed=kv_cache_dtype:k=int8,v=int4,block_size:32`` is two flags.  Raises ``ConfigError``.
    """
    name, sign, rest = text.partition("=")
    name, rest = name.strip(), rest.strip()
    if not sign or not name or not rest:
        raise ConfigError(f"--setting {text!r} is not NAME=flag:value,... or NAME=http://host:port/v1.")
    if _URL.match(rest):
        return Setting(name=name, base_url=rest)
    return Setting(name=name, flags=parse_flags(rest))


def parse_flags(text: str) -> dict[str, str]:
    """``flag:value,flag:value`` by flag name; see ``parse_setting``."""
    flags: dict[str, str] = {}
    last: str | None = None
    for part in text.split(","):
        found = _KEY.fullmatch(part)
        key = found[1].lower().replace("-", "_") if found else ""
        if found and (key in _FLAG_NAMES or last is None):
            if key in flags:
                raise ConfigError(f"{text!r} gives {key} twice; give it once.")
            flags[key] = found[2].strip()
            last = key
        elif last is not None and not found:
            flags[last] += f",{part}"
        else:
            raise ConfigError(
                f"{part.strip()!r} in {text!r} is not flag:value with a flag of the engine; see `kvasir serve --help`."
            )
    return flags
