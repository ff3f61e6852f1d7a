"""The number formats of K and V together, and how a person writes them: ``int8``, or ``k=int8,v=int4``."""

from dataclasses import dataclass

from kvasir.kv.format_spec import KVDtype

_SYNONYMS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "fp8_e4m3": "fp8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatPair:
    """K and V are chosen apart: what a head loses by coarse keys is not what it loses by coarse values."""

    k: KVDtype
    v: KVDtype

    def __str__(self) -> str:
        return self.k.value if self.k is self.v else f"k={self.k.value},v={self.v.value}"


def split_pair(text: str) -> tuple[str, str]:
    """The two format names in ``X``, ``k=X,v=Y`` (in either order) or ``X,Y`` (K first).  Raises ``ValueError``."""
    parts = [part.strip() for part in text.split(",")]
    names = dict(part.split("=", 1) for part in parts if "=" in part)
    if names:
        if len(parts) != 2 or set(names) != {"k", "v"} or not all(names.values()):
            raise ValueError("write one format for both, or k=FORMAT,v=FORMAT")
        return names["k"].strip(), names["v"].strip()
    if len(parts) > 2 or not all(parts):
        raise ValueError("write one format for both, or k=FORMAT,v=FORMAT")
    return parts[0], parts[-1]


def parse_pair(text: str) -> FormatPair:
    """Raises ``ValueError`` with what would be understood."""
    k, v = (_find(name) for name in split_pair(text.lower()))
    return FormatPair(k=k, v=v)


def _find(name: str) -> KVDtype:
    try:
        return KVDtype(_SYNONYMS.get(name, name))
    except ValueError:
        known = ", ".join(dtype.value for dtype in KVDtype)
        raise ValueError(f"there is no format {name!r}; choose one of auto, {known}, or k=FORMAT,v=FORMAT") from None
