"""Which running text is read token by token: the same documents for divergence and perplexity, read once."""

from dataclasses import dataclass
from typing import Self

from kvasir.lab.document import Document, whole
from kvasir.lab.lab import Lab
from kvasir.lab.measure import Size

_NUM_DECODED = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPlan:
    """``num_documents`` of ``num_tokens``, the last ``num_decoded`` of each fed one by one; beside them ``num_long``
    documents of the whole context, scored in stretches only."""

    num_documents: int
    num_tokens: int
    num_long: int
    num_long_tokens: int
    num_decoded: int = _NUM_DECODED

    @classmethod
    def sized(cls, size: Size, context: int) -> Self:
        if size is Size.QUICK:
            return cls(num_documents=6, num_tokens=min(320, context - 1), num_long=0, num_long_tokens=0)
        tokens = min(1024, context - 1)
        return cls(
            num_documents=16, num_tokens=tokens, num_long=4 if context > tokens + 1 else 0, num_long_tokens=context - 1
        )

    def documents(self, lab: Lab) -> list[Document]:
        found = [
            whole(passage.token_ids, start=passage.start, num_decoded=self.num_decoded)
            for passage in lab.texts.passages(self.num_documents, self.num_tokens)
        ]
        if self.num_long:
            for passage in lab.texts.passages(self.num_long, self.num_long_tokens):
                found.append(_stretches(passage.token_ids, passage.start, self.num_decoded))
        return found


def _stretches(token_ids: tuple[int, ...], start: int, num_decoded: int) -> Document:
    """Scored in [2^k - 128, 2^k) for every power of two, and at the end: every depth at a bearable cost."""
    length = 128
    ends = [2**k for k in range(8, 24) if 2**k < len(token_ids) - length] + [len(token_ids)]
    scored = tuple((max(start, end - length), end) for end in ends if end > start)
    return Document(token_ids=token_ids, scored=scored, num_decoded=num_decoded)
