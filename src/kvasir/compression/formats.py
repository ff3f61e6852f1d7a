"""The K and V formats a calibration may choose from, as they are written in a flag.  No torch."""

from kvasir.core.errors import ConfigError
from kvasir.kv.format_spec import KVDtype


def parse_formats(text: str) -> tuple[KVDtype, KVDtype]:
    """``int8`` or ``k=int8,v=int4`` as (K, V).  Raises ``ConfigError``."""
    if "=" not in text:
        return _dtype(text, text), _dtype(text, text)
    given: dict[str, KVDtype] = {}
    for part in text.split(","):
        side, _, name = part.partition("=")
        if side.strip() not in ("k", "v") or side.strip() in given:
            raise ConfigError(f"--kv-cache-dtype {text!r}: write one format, or k=FORMAT,v=FORMAT.")
        given[side.strip()] = _dtype(name, text)
    if len(given) != 2:
        raise ConfigError(f"--kv-cache-dtype {text!r} leaves out K or V; write k=FORMAT,v=FORMAT.")
    return given["k"], given["v"]


def _dtype(name: str, text: str) -> KVDtype:
    try:
        return KVDtype(name.strip().lower())
    except ValueError:
        known = ", ".join(dtype.value for dtype in KVDtype)
        raise ConfigError(f"--kv-cache-dtype {text!r}: there is no KV format {name!r}; known are {known}.") from None
