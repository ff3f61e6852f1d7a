"""How each named GGUF pre-tokenizer cuts text into words before byte-pair merging: one table."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvasir.core.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import normalizers, pre_tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """``splits`` are applied one after the other, each cutting out its matches.  ``ignores_merges``: a word that is a
    token as it stands is taken whole.  ``adds_bos``: what llama.cpp assumes when the file does not say."""

    splits: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False
    composes_unicode: bool = False

    def build(self) -> "pre_tokenizers.PreTokenizer":
        from tokenizers import Regex, pre_tokenizers

        cuts: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.splits
        ]
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(cuts)

    def normalizer(self) -> "normalizers.Normalizer | None":
        from tokenizers import normalizers

        return normalizers.NFC() if self.composes_unicode else None


_DIGITS_THEN_GPT2 = PreTokenizer(splits=(r"\p{N}", _GPT2))
_PLAIN_GPT2 = PreTokenizer(splits=(_GPT2,))
_AS_LLAMA3 = PreTokenizer(splits=(_LLAMA3,), ignores_merges=True, adds_bos=True)
_AS_QWEN2 = PreTokenizer(splits=(_QWEN2,), composes_unicode=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer(splits=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _PLAIN_GPT2,
    "phi-2": _PLAIN_GPT2,
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "codeshell": _DIGITS_THEN_GPT2,
    "minerva-7b": _DIGITS_THEN_GPT2,
    "llama-bpe": _AS_LLAMA3,
    "llama3": _AS_LLAMA3,
    "llama-v3": _AS_LLAMA3,
    "smaug-bpe": PreTokenizer(splits=(_LLAMA3,)),
    "qwen2": _AS_QWEN2,
    "deepseek-r1-qwen": _AS_QWEN2,
    "tekken": PreTokenizer(splits=(_TEKKEN,), ignores_merges=True, adds_bos=True),
    "deepseek-coder": PreTokenizer(splits=_DEEPSEEK_CODER),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The rule a file names in ``tokenizer.ggml.pre``; ``ModelError`` for one we do not know."""
    if name not in PRE_TOKENIZERS:
        raise ModelError(
            f"GGUF pre-tokenizer {name!r} is not known; known are {', '.join(PRE_TOKENIZERS)}. "
            "The model's Hugging Face folder with its tokenizer.json works instead."
        )
    return PRE_TOKENIZERS[name]
