"""Token ids to text as they come, in linear time, never half a character."""

import codecs
from collections.abc import Set

from kvasir.text.token_bytes import TokenBytes

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one growing token stream.

    ``push`` returns the text that became certain: bytes that may still be the start of a character stay inside until
    the next token decides.  ``finish`` returns what is left, U+FFFD for a character that never got whole.  All
    returned strings together equal the decoding of all tokens at once, whatever the order of calls.

    ``skipped_ids`` (special tokens) have no text.  With ``is_continuation`` the stream goes on after other text, so
    the space that SentencePiece writes before the first word is kept.
    """

    def __init__(self, token_bytes: TokenBytes, *, skipped_ids: Set[int], is_continuation: bool = False) -> None:
        self._token_bytes = token_bytes
        self._skipped_ids = skipped_ids
        self._decoder = _new_utf8_decoder(errors="replace")
        self._spaces_to_strip = 0 if is_continuation else token_bytes.num_stripped_spaces

    def push(self, token_id: int) -> str:
        if token_id in self._skipped_ids:
            return ""
        text = self._decoder.decode(self._token_bytes[token_id])
        return self._strip(text) if self._spaces_to_strip else text

    def finish(self) -> str:
        text = self._decoder.decode(b"", final=True)
        return self._strip(text) if self._spaces_to_strip else text

    def _strip(self, text: str) -> str:
        while text and self._spaces_to_strip:
            if text[0] != " ":
                self._spaces_to_strip = 0
            else:
                text = text[1:]
                self._spaces_to_strip -= 1
        return text
