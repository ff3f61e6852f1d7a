"""Small real tokenizers of the two kinds that are served, made in a moment."""

import io
from functools import cache
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not care at all.",
    "Il était une fois une forêt où les renards parlaient; personne ne s'en étonnait.",
    "Größere Flüsse führen im Frühling mehr Wasser als kleine Bäche im Herbst.",
    "Быстрая лиса прыгает через ленивую собаку, а собака спит и видит сны.",
    "素早い狐が怠け者の犬を飛び越える。犬は眠っている。",
    "def area(radius):\n    return 3.14159 * radius ** 2  # square metres\n",
    "One hundred and twenty-three, 123; four hundred and fifty-six, 456.",
    "🙂 smiles, 👩‍👩‍👧 is a family, 🇩🇪 is a flag and é may be two code points.",
]
BOS, EOS, END = "<|begin|>", "<|end|>", "<|eot|>"


@cache
def _byte_level_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (BOS, EOS, END)])
    tokenizer.add_tokens([AddedToken("<tool call>", special=False, normalized=False)])
    return tokenizer.to_str()


def byte_level(*, adds_bos: bool = False) -> Tokenizer:
    """A byte-level BPE of about 600 tokens, with a post-processor that writes BOS if asked."""
    tokenizer = Tokenizer.from_str(_byte_level_json())
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
        )
    return tokenizer


@cache
def sentencepiece_model() -> bytes:
    """A SentencePiece BPE model with byte fallback, trained on the corpus."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 4),
        model_writer=model,
        model_type="bpe",
        vocab_size=480,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return model.getvalue()


def sentencepiece_processor() -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model())


def sentencepiece_metadata() -> dict[str, Any]:
    """The vocabulary of ``sentencepiece_model`` as llama.cpp's converter writes it."""
    model = sentencepiece_processor()
    ids = range(model.vocab_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [model.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": [_piece_type(model, i) for i in ids],
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
    }


def _piece_type(model: sentencepiece.SentencePieceProcessor, token_id: int) -> int:
    kinds = {2: model.is_unknown, 3: model.is_control, 5: model.is_unused, 6: model.is_byte}
    return next((kind for kind, is_kind in kinds.items() if is_kind(token_id)), 1)


def sentencepiece_like() -> Tokenizer:
    """Characters and bytes only, decoded as SentencePiece does (leading space, byte fallback)."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = sorted(set("".join(CORPUS)) - set(" \n🙂👩👧"))
    vocabulary = {piece: i for i, piece in enumerate([*pieces, "\u2581", *letters, "\u2581t", "\u2581th"])}
    merges = [("\u2581", "t"), ("\u2581t", "h")]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in ("<unk>", "<s>", "</s>")]
    )
    return tokenizer
