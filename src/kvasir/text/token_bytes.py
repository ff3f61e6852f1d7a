"""What bytes each token stands for: the one definition of text that decoding, streaming and logprobs share."""

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvasir.core.errors import ModelError

if TYPE_CHECKING:
    import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Bytes by token id, found once each.

    The text of a token stream is the concatenation of its tokens' bytes read as UTF-8 (a broken byte sequence reads
    as U+FFFD), less ``num_stripped_spaces`` spaces at its very start.  That is what the two decoders of the served
    families do: byte-level BPE, and SentencePiece with or without byte fallback.  Ids without a token are b"".
    Raises ``ModelError`` for any other decoder.
    """

    def __init__(self, tokenizer: "tokenizers.Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {}
        self._encode, self.num_stripped_spaces = _decoder_rule(tokenizer)

    def __getitem__(self, token_id: int) -> bytes:
        found = self._known.get(token_id)
        if found is None:
            token = self._tokenizer.id_to_token(token_id) if token_id >= 0 else None
            found = self._known[token_id] = b"" if token is None else self._encode(token)
        return found


def byte_alphabet() -> dict[str, int]:
    """The letters with which byte-level BPE writes bytes: printable Latin-1 stands for itself, the other 68 bytes for
    the code points from 256 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return letters | {chr(256 + i): byte for i, byte in enumerate(others)}


def _decoder_rule(tokenizer: "tokenizers.Tokenizer") -> tuple[Callable[[str], bytes], int]:
    spec = _decoder_spec(tokenizer)
    steps = spec["decoders"] if spec.get("type") == "Sequence" else [spec]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level, 0
    if kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return _sentencepiece(steps)
    raise ModelError(
        f"The tokenizer's decoder {'+'.join(map(str, kinds))} is not served; "
        "served are ByteLevel and SentencePiece (Replace, ByteFallback, Fuse, Strip)."
    )


def _decoder_spec(tokenizer: "tokenizers.Tokenizer") -> dict[str, Any]:
    decoder = tokenizer.decoder
    return {"type": None} if decoder is None else json.loads(decoder.__getstate__())


_ALPHABET = byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[letter] for letter in token])
    except KeyError:
        return token.encode()  # an added token, written as it is


def _sentencepiece(steps: list[dict[str, Any]]) -> tuple[Callable[[str], bytes], int]:
    replacements: list[tuple[str, str]] = []
    has_bytes = False
    num_stripped = 0
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replacements.append((old, new))
            case {"type": "ByteFallback"}:
                has_bytes = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0}:
                num_stripped += start
            case _:
                raise ModelError(f"The tokenizer's decoder step {json.dumps(step)} is not served.")

    def encode(token: str) -> bytes:
        if has_bytes and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return encode, num_stripped
