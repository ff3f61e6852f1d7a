"""The vocabulary of a GGUF file as tokenizer.json, tokenizer_config.json and chat_template.jinja."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvasir.core.errors import ModelError
from kvasir.models.gguf_config import GgufMetadata
from kvasir.models.gguf_pretokenizers import pre_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPACE = "\u2581"
_END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|eom_id|>", "<|end|>", "<|endofturn|>", "<end_of_turn>")
"""Control tokens that end an assistant's turn wherever the chat template writes them."""


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Token texts and kinds by id, and the special ids the file names (None where it does not)."""

    tokens: list[str]
    types: list[int]
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    eom_id: int | None
    unknown_id: int | None
    padding_id: int | None
    chat_template: str | None

    @classmethod
    def from_metadata(cls, metadata: GgufMetadata, vocab_size: int) -> "Vocabulary":
        tokens = metadata.get("tokenizer.ggml.tokens") or []
        if not tokens or len(tokens) > vocab_size:
            raise ModelError(
                f"The GGUF file has {len(tokens)} tokens for an embedding of {vocab_size} rows; its vocabulary "
                "must be there and must fit."
            )
        types = metadata.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
        if len(types) != len(tokens):
            raise ModelError(f"The GGUF file has {len(tokens)} tokens, but {len(types)} token types.")

        def special(name: str) -> int | None:
            value = metadata.get(f"tokenizer.ggml.{name}_token_id")
            return int(value) if value is not None and 0 <= int(value) < len(tokens) else None

        return cls(
            tokens=list(tokens),
            types=[int(kind) for kind in types],
            bos_id=special("bos"),
            eos_id=special("eos"),
            eot_id=special("eot"),
            eom_id=special("eom"),
            unknown_id=special("unknown"),
            padding_id=special("padding"),
            chat_template=metadata.get("tokenizer.chat_template"),
        )

    def end_ids(self) -> list[int]:
        """Every token that ends an answer: eos, eot, eom, and the end-of-turn token of the chat template."""
        ids = [self.eos_id, self.eot_id, self.eom_id]
        template = self.chat_template or ""
        ids += [
            token_id
            for token_id, token in enumerate(self.tokens)
            if self.types[token_id] == TokenType.CONTROL and token in _END_OF_TURN and token in template
        ]
        return list(dict.fromkeys(token_id for token_id in ids if token_id is not None))

    def text_of(self, token_id: int | None) -> str | None:
        return None if token_id is None else self.tokens[token_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltTokenizer:
    """``special_ids`` belong into config.json; ``write`` makes the tokenizer files."""

    tokenizer: "Tokenizer"
    vocabulary: Vocabulary
    adds_bos: bool
    adds_eos: bool
    context: int

    @property
    def special_ids(self) -> dict[str, Any]:
        ends = self.vocabulary.end_ids()
        return {
            "bos_token_id": self.vocabulary.bos_id,
            "eos_token_id": ends[0] if len(ends) == 1 else (ends or None),
            "pad_token_id": self.vocabulary.padding_id,
        }

    def write(self, folder: Path) -> None:
        words = self.vocabulary
        self.tokenizer.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self.adds_bos,
            "add_eos_token": self.adds_eos,
            "bos_token": words.text_of(words.bos_id),
            "eos_token": words.text_of(words.eos_id),
            "unk_token": words.text_of(words.unknown_id),
            "pad_token": words.text_of(words.padding_id),
            "clean_up_tokenization_spaces": False,
            "model_max_length": self.context,
        }
        config = {key: value for key, value in config.items() if value is not None}
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
        if words.chat_template:
            (folder / "chat_template.jinja").write_text(words.chat_template, encoding="utf-8")


def build_tokenizer(metadata: GgufMetadata, vocab_size: int) -> BuiltTokenizer:
    """The tokenizer of the file.  ``vocab_size`` is the number of embedding rows, which the tokens must fit.

    Raises ``ModelError`` for a vocabulary model or pre-tokenizer that is not known.
    """
    kind = str(metadata.get("tokenizer.ggml.model"))
    if kind not in _BUILDERS:
        raise ModelError(f"GGUF vocabulary {kind!r} is not served; served are {', '.join(_BUILDERS)}.")
    vocabulary = Vocabulary.from_metadata(metadata, vocab_size)
    tokenizer, default_bos = _BUILDERS[kind](metadata, vocabulary)
    adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", default_bos)) and vocabulary.bos_id is not None
    adds_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False)) and vocabulary.eos_id is not None
    _add_special_tokens(tokenizer, vocabulary)
    _add_post_processor(tokenizer, vocabulary, adds_bos, adds_eos)
    return BuiltTokenizer(
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        adds_bos=adds_bos,
        adds_eos=adds_eos,
        context=metadata.needed("context_length"),
    )


def _byte_level_bpe(metadata: GgufMetadata, vocabulary: Vocabulary) -> tuple["Tokenizer", bool]:
    from tokenizers import Tokenizer, decoders, models

    rule = pre_tokenizer(str(metadata.get("tokenizer.ggml.pre", "default")))
    # A token holds no raw space (bytes are mapped to letters), so the one space of a merge is the separator.
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges") or []]
    # Control and user-defined tokens stay in: no merge makes them, and the model is what gives them their ids.
    words = {
        token: token_id
        for token_id, token in enumerate(vocabulary.tokens)
        if vocabulary.types[token_id] != TokenType.UNUSED
    }
    missing = next((m for m in merges if len(m) != 2 or m[0] not in words or m[1] not in words), None)
    if not merges or missing is not None:
        raise ModelError(f"The GGUF file's byte-level vocabulary has no usable merges (first fault: {missing!r}).")
    model = models.BPE(vocab=words, merges=merges, fuse_unk=False, ignore_merges=rule.ignores_merges)
    tokenizer = Tokenizer(model)
    normalizer = rule.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = rule.build()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rule.adds_bos


def _sentencepiece_bpe(metadata: GgufMetadata, vocabulary: Vocabulary) -> tuple["Tokenizer", bool]:
    """SentencePiece merges the neighbours whose union has the best score; as merges that is: unions by score."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = metadata.get("tokenizer.ggml.scores") or []
    if len(scores) != len(vocabulary.tokens):
        raise ModelError(f"The GGUF file has {len(vocabulary.tokens)} tokens, but {len(scores)} scores.")
    words = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.text_of(vocabulary.unknown_id)
    model = models.BPE(
        vocab=words,
        merges=_merges_by_score(words, scores, vocabulary.types),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=TokenType.BYTE in vocabulary.types,
    )
    tokenizer = Tokenizer(model)
    has_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(_SPACE)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    decoding: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if has_prefix:
        decoding.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer, True


def _merges_by_score(words: dict[str, int], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    mergeable = {token for token, token_id in words.items() if types[token_id] == TokenType.NORMAL}
    ranked: list[tuple[float, int, int, int, str, str]] = []
    for token in mergeable:
        token_id = words[token]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in mergeable and right in mergeable:
                ranked.append((-scores[token_id], token_id, words[left], words[right], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


_BUILDERS: dict[str, Callable[[GgufMetadata, Vocabulary], tuple["Tokenizer", bool]]] = {
    "gpt2": _byte_level_bpe,
    "llama": _sentencepiece_bpe,
}


def _add_special_tokens(tokenizer: "Tokenizer", vocabulary: Vocabulary) -> None:
    """Control and user-defined tokens are cut out of the text before anything else, whole."""
    from tokenizers import AddedToken

    for token_id, token in enumerate(vocabulary.tokens):
        kind = vocabulary.types[token_id]
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == TokenType.USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])


def _add_post_processor(tokenizer: "Tokenizer", vocabulary: Vocabulary, adds_bos: bool, adds_eos: bool) -> None:
    from tokenizers import processors

    edges = [vocabulary.bos_id] if adds_bos else [], [vocabulary.eos_id] if adds_eos else []
    texts = [[vocabulary.tokens[i] for i in edge if i is not None] for edge in edges]
    if not any(texts):
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*texts[0], "$A", *texts[1]],
        pair=[*texts[0], "$A:0", "$B:1", *texts[1]],
        special_tokens=[(text, tokenizer.token_to_id(text)) for edge in texts for text in edge],
    )
