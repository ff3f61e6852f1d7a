"""Prefix keys: SHA-256 over a canonical encoding, the same in every process and after every restart.

Every field carries a tag and a length, so values from different sources can never compare equal.
"""

import hashlib
from array import array
from collections.abc import Sequence

KEY_BYTES = 32


def _field(tag: bytes, value: bytes) -> bytes:
    return tag + len(value).to_bytes(8, "little") + value


def root_key(*, model_digest: str, layout_digest: str, tenant: str = "", salt: str = "", adapter: str = "") -> bytes:
    """The parent of every first block: who may share with whom."""
    return hashlib.sha256(
        b"kvasir-root-1"
        + _field(b"M", model_digest.encode())
        + _field(b"L", layout_digest.encode())
        + _field(b"T", tenant.encode())
        + _field(b"S", salt.encode())
        + _field(b"A", adapter.encode())
    ).digest()


def block_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Key of the block that holds ``token_ids`` after everything that ``parent`` names."""
    encoded = array("q", token_ids)
    if encoded.itemsize != 8:
        raise RuntimeError("array('q') is not 8 bytes wide on this platform")
    return hashlib.sha256(b"B" + parent + _field(b"I", encoded.tobytes())).digest()
