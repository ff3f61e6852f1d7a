"""Streamed text is the decoding of all tokens, and never shows half a character on the way."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from kvasir.core.errors import ModelError
from kvasir.text.token_bytes import byte_alphabet
from kvasir.text.tokenizer import Tokenizer
from tiny_tokenizers import BOS, CORPUS, byte_level, sentencepiece_like

BACKENDS = {"byte-level": byte_level(), "sentencepiece": sentencepiece_like()}
TOKENIZERS = {name: Tokenizer(backend, config={}) for name, backend in BACKENDS.items()}
KINDS = st.sampled_from(sorted(BACKENDS))
TEXTS = st.text(alphabet=sorted(set("".join(CORPUS)) | set("🙂👩‍👧🇩🇪\u0301 \n€𝄞")), max_size=80)


def streamed(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> list[str]:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


@given(kind=KINDS, data=st.data(), skip=st.booleans())
def test_any_tokens_stream_to_their_decoding(kind: str, data: st.DataObject, skip: bool) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=60))
    assert "".join(streamed(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip)


@given(ids=st.lists(st.integers(0, 610), max_size=60), skip=st.booleans())
@example(ids=[127, 100, 3], skip=True)
def test_byte_level_decoding_is_the_librarys_for_any_tokens(ids: list[int], skip: bool) -> None:
    """Broken UTF-8 included: both put one U+FFFD for each maximal broken part."""
    expected = BACKENDS["byte-level"].decode(ids, skip_special_tokens=skip)
    assert TOKENIZERS["byte-level"].decode(ids, skip) == expected


@given(kind=KINDS, text=TEXTS)
def test_text_comes_back_and_no_step_shows_half_a_character(kind: str, text: str) -> None:
    backend, tokenizer = BACKENDS[kind], TOKENIZERS[kind]
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = streamed(tokenizer, ids)
    assert "".join(pieces) == text == backend.decode(ids)
    assert "\ufffd" not in "".join(pieces[:-1])


def test_an_emoji_over_four_byte_tokens_comes_whole() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = tokenizer.encode("a🙂b", add_special_tokens=False)
    assert streamed(tokenizer, ids) == ["", "a", "", "", "", "🙂", "b", ""]


def test_a_character_that_never_got_whole_is_one_replacement_at_the_end() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = tokenizer.encode("a🙂", add_special_tokens=False)[:-1]
    assert streamed(tokenizer, ids)[-1] == "\ufffd"
    assert tokenizer.decode(ids) == "a\ufffd"


def test_special_tokens_have_no_text_and_do_not_part_a_character() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    bos = tokenizer.token_id(BOS)
    assert bos is not None
    smile = [tokenizer.token_id(letter) for letter in _letters("🙂")]
    ids = [token_id for token_id in (*smile[:2], bos, *smile[2:]) if token_id is not None]
    assert len(ids) == 5
    assert tokenizer.decode(ids) == "🙂"
    assert tokenizer.decode(ids, skip_special_tokens=False) == f"\ufffd{BOS}\ufffd\ufffd"


def _letters(text: str) -> list[str]:
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    return [letters[byte] for byte in text.encode()]


def test_sentencepieces_first_space_is_kept_when_text_goes_on() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = tokenizer.encode("the dog", add_special_tokens=False)
    assert tokenizer.decode(ids) == "the dog"
    going_on = tokenizer.detokenizer(is_continuation=True)
    assert "".join(going_on.push(i) for i in ids) == " the dog"


def test_the_alphabet_is_the_librarys() -> None:
    from tokenizers import pre_tokenizers

    alphabet = byte_alphabet()
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.Metaspace(), decoders.CTC()])
def test_another_decoder_is_refused_by_name(decoder: decoders.Decoder | None) -> None:
    backend = Backend(models.BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(ModelError, match="is not served"):
        Tokenizer(backend, config={})


@pytest.mark.parametrize("kind", sorted(BACKENDS))
def test_time_is_linear_in_the_tokens(kind: str) -> None:
    """Also for the worst stream of all, bytes that never make a character."""
    tokenizer = TOKENIZERS[kind]
    lead = "\u00e2" if kind == "byte-level" else "<0xE2>"
    token_id = tokenizer.token_id(lead)
    assert token_id is not None
    seconds = [_seconds(tokenizer, [token_id] * size) for size in (10_000, 80_000)]
    assert seconds[1] < 40 * seconds[0]  # eight times the tokens; quadratic would be sixty-four


def _seconds(tokenizer: Tokenizer, ids: list[int]) -> float:
    best = float("inf")
    for _ in range(3):
        detokenizer = tokenizer.detokenizer()
        start = time.perf_counter()
        for token_id in ids:
            detokenizer.push(token_id)
        best = min(best, time.perf_counter() - start)
    return best
