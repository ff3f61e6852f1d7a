"""Makes prompts of a wanted length: random token ids, or English-looking words whose tokens the server has counted."""

from dataclasses import dataclass, field
from enum import Enum

from kvasir.loadtest.plan import Prompt
from kvasir.workload.prompts import make_text, make_token_ids

_FEWEST_WORDS_OF_A_SENTENCE = 8
_MAX_KEPT_BLOCKS = 2048


class PromptKind(Enum):
    TOKENS = "tokens"
    """Ids in the body: exact lengths, nothing to tokenise; only /v1/completions takes them."""
    WORDS = "words"


@dataclass(frozen=True, slots=True, kw_only=True)
class WordRate:
    """How the server's tokenizer sees our words: ``tokens = overhead + per_word * words``."""

    per_word: float = 1.3
    overhead: float = 0.0
    is_measured: bool = False

    @classmethod
    def fit(cls, few: tuple[int, int], many: tuple[int, int]) -> "WordRate":
        """From two prompts as (words, tokens the server counted)."""
        per_word = (many[1] - few[1]) / (many[0] - few[0])
        if per_word <= 0:
            return cls()
        return cls(per_word=per_word, overhead=few[1] - per_word * few[0], is_measured=True)

    def num_words(self, num_tokens: int, *, has_overhead: bool = True) -> int:
        overhead = self.overhead if has_overhead else 0.0
        return max(1, round((num_tokens - overhead) / self.per_word))

    def num_tokens(self, text: str) -> int:
        return max(1, round(self.overhead + self.per_word * len(text.split())))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMaker:
    """Same ``seed`` and key, same prompt; other seeds share nothing, so a server's prefix cache knows none of it."""

    kind: PromptKind
    seed: int
    rate: WordRate = field(default_factory=WordRate)
    first_id: int = 1000
    last_id: int = 20_000

    def make(self, num_tokens: int, key: int, *, has_overhead: bool = True) -> Prompt:
        """``has_overhead``: the text is to make up for the tokens that the server's template adds."""
        seed = self.seed << 64 | key
        if self.kind is PromptKind.TOKENS:
            return make_token_ids(num_tokens, seed, first_id=self.first_id, last_id=self.last_id)
        return make_words(self.rate.num_words(num_tokens, has_overhead=has_overhead), seed)

    def join(self, parts: list[Prompt]) -> Prompt:
        if self.kind is PromptKind.WORDS:
            return " ".join(part for part in parts if isinstance(part, str))
        return tuple(token_id for part in parts for token_id in part if isinstance(token_id, int))


class BlockMaker:
    """The content of a trace's blocks: equal ids, equal content.  Recent ones are kept, since prefixes repeat."""

    def __init__(self, maker: PromptMaker) -> None:
        self._maker = maker
        self._kept: dict[tuple[int, int], Prompt] = {}

    def block(self, hash_id: int, num_tokens: int) -> Prompt:
        key = (hash_id, num_tokens)
        found = self._kept.pop(key, None)
        if found is None:
            found = self._maker.make(num_tokens, hash_id, has_overhead=False)
            if len(self._kept) >= _MAX_KEPT_BLOCKS:
                del self._kept[next(iter(self._kept))]
        self._kept[key] = found
        return found


def make_words(num_words: int, seed: int) -> str:
    """Exactly ``num_words`` words of sentences."""
    text = make_text(-(-num_words // _FEWEST_WORDS_OF_A_SENTENCE), seed)
    return " ".join(text.split()[:num_words])
