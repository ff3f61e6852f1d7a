"""Sizes in bytes as people write and read them: '2GiB', '1.5 GiB'."""

import re

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "kb": 10**3,
    "m": 1 << 20,
    "mib": 1 << 20,
    "mb": 10**6,
    "g": 1 << 30,
    "gib": 1 << 30,
    "gb": 10**9,
    "t": 1 << 40,
    "tib": 1 << 40,
    "tb": 10**12,
}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str | int) -> int:
    """Bytes of ``2GiB``, ``2g``, ``1.5 GB``, ``4096``: binary units with an i or as one letter, decimal without.

    Raises ``ValueError`` saying what is understood."""
    if isinstance(text, int):
        return text
    match = _PATTERN.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write for example 2GiB, 512MiB or a number of bytes")
    return round(float(match[1]) * _UNITS[match[2].lower()])


def format_bytes(num_bytes: int) -> str:
    """Three or four significant digits with a binary unit: ``149.1 GiB``, ``12.0 MiB``, ``640 B``."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"
