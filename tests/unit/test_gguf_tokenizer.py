"""Vocabularies of GGUF files give the ids that the tokenizer they came from gives."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from gguf_files import byte_level_metadata, model_metadata
from kvasir.core.errors import ModelError
from kvasir.models.gguf_config import GgufMetadata
from kvasir.models.gguf_pretokenizers import PRE_TOKENIZERS, pre_tokenizer
from kvasir.models.gguf_tokenizer import build_tokenizer
from kvasir.text.tokenizer import Tokenizer
from tiny_tokenizers import CORPUS, byte_level, sentencepiece_metadata, sentencepiece_model, sentencepiece_processor

TEXTS = st.text(alphabet=sorted(set("".join(CORPUS)) | set("\u2581\u0301 \n\t<>|ÿ€𝄞")), max_size=60)


def written(folder: Path, vocabulary: dict[str, Any]) -> Tokenizer:
    values = {"general.architecture": "llama"} | model_metadata("llama") | vocabulary
    build_tokenizer(GgufMetadata(values), vocab_size=1000).write(folder)
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def from_sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return written(tmp_path_factory.mktemp("spm"), sentencepiece_metadata())


@given(text=TEXTS)
@settings(max_examples=300)
def test_sentencepiece_ids_are_sentencepieces_own(from_sentencepiece: Tokenizer, text: str) -> None:
    expected = sentencepiece_processor().encode(text)
    assert from_sentencepiece.encode(text, add_special_tokens=False) == expected
    assert from_sentencepiece.decode(expected) == sentencepiece_processor().decode(expected)


def test_sentencepiece_merges_are_exercised(from_sentencepiece: Tokenizer) -> None:
    """The corpus itself must need merges and byte fallback, or the test above says little."""
    ids = from_sentencepiece.encode(CORPUS[0], add_special_tokens=False)
    assert len(ids) < len(CORPUS[0]) * 0.7
    assert any(sentencepiece_processor().is_byte(i) for i in from_sentencepiece.encode("𝄞"))


def test_sentencepiece_files_add_bos_unless_they_say_no(tmp_path: Path, from_sentencepiece: Tokenizer) -> None:
    assert from_sentencepiece.adds_bos
    assert from_sentencepiece.encode("fox")[0] == sentencepiece_processor().bos_id()
    silent = written(tmp_path, sentencepiece_metadata() | {"tokenizer.ggml.add_bos_token": False})
    assert not silent.adds_bos


def test_without_space_prefix_nothing_is_prepended_or_stripped(tmp_path: Path) -> None:
    tokenizer = written(tmp_path, sentencepiece_metadata() | {"tokenizer.ggml.add_space_prefix": False})
    ids = tokenizer.encode("fox", add_special_tokens=False)
    assert tokenizer.decode(ids) == "fox"
    assert tokenizer.decode(tokenizer.encode(" fox", add_special_tokens=False)) == " fox"
    assert ids == [i for i in ids if "\u2581" not in sentencepiece_processor().id_to_piece(i)]


def test_a_sentencepiece_folder_without_tokenizer_json_is_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hugging Face layout with tokenizer.model only: same ids as SentencePiece, through transformers, once."""
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(sentencepiece_model())
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": True, "legacy": False}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    tokenizer = Tokenizer.from_folder(folder)
    for text in CORPUS:
        assert tokenizer.encode(text) == [1, *sentencepiece_processor().encode(text)]
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(list((tmp_path / "cache" / "tokenizers").glob("*/tokenizer.json"))) == 1


def test_a_folder_without_any_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json and no tokenizer\.model"):
        Tokenizer.from_folder(tmp_path)


def byte_level_as_metadata(backend: Backend, pre: str) -> dict[str, Any]:
    """A trained byte-level tokenizer as llama.cpp's converter writes it."""
    model = json.loads(backend.to_str())
    tokens = sorted(backend.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    special = {entry["id"]: 3 if entry["special"] else 4 for entry in model["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [token for token, _ in tokens],
        "tokenizer.ggml.token_type": [special.get(token_id, 1) for _, token_id in tokens],
        "tokenizer.ggml.merges": merges,
    }


@pytest.fixture(scope="module")
def from_byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return written(tmp_path_factory.mktemp("bpe"), byte_level_as_metadata(byte_level(), "gpt-2"))


@given(text=TEXTS | st.sampled_from(["a<|begin|>b", "x<tool call>y", "<|end|><|end|>"]))
@settings(max_examples=300)
def test_byte_level_ids_are_the_originals(from_byte_level: Tokenizer, text: str) -> None:
    assert from_byte_level.encode(text) == byte_level().encode(text).ids


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "don't  stop 1234", ["don", "'t", " ", " stop", " 1234"]),
        ("smollm", "in 1984 I", ["in", " ", "1", "9", "8", "4", " I"]),
        ("llama-bpe", "IT'S 12345!\n\nYes", ["IT", "'S", " ", "123", "45", "!\n\n", "Yes"]),
        ("qwen2", "IT'S 123!\n\nYes", ["IT", "'S", " ", "1", "2", "3", "!\n\n", "Yes"]),
        ("tekken", "HelloWorld a/b", ["Hello", "World", " a", "/b"]),
        ("deepseek-coder", "x = 42\n", ["x", " = ", "4", "2", "\n"]),
        ("default", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
    ],
)
def test_words_are_cut_as_the_name_says(name: str, text: str, words: list[str]) -> None:
    letters = {word: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False) for word in words}
    expected = [letters[word].pre_tokenize_str(word)[0][0] for word in words]
    assert [piece for piece, _ in pre_tokenizer(name).build().pre_tokenize_str(text)] == expected


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@given(text=TEXTS)
@settings(max_examples=50)
def test_no_rule_loses_text(name: str, text: str) -> None:
    pieces = [piece for piece, _ in pre_tokenizer(name).build().pre_tokenize_str(text)]
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert "".join(pieces) == "".join(piece for piece, _ in whole)


def test_llama3_files_take_whole_words_and_add_bos(tmp_path: Path) -> None:
    """``ignore_merges``: a word that is a token is taken, even when no merge leads to it."""
    words = byte_level_metadata()
    words["tokenizer.ggml.tokens"] = [*words["tokenizer.ggml.tokens"], "zebra"]
    words["tokenizer.ggml.token_type"] = [*words["tokenizer.ggml.token_type"], 1]
    bos = words["tokenizer.ggml.bos_token_id"]
    whole = written(tmp_path, words)
    assert whole.encode("zebra") == [bos, len(words["tokenizer.ggml.tokens"]) - 1]
    (tmp_path / "plain").mkdir()
    plain = written(tmp_path / "plain", words | {"tokenizer.ggml.pre": "smaug-bpe"})
    assert len(plain.encode("zebra")) == 5


def test_special_tokens_keep_their_kind(tmp_path: Path) -> None:
    words = byte_level_metadata() | {"tokenizer.ggml.add_eos_token": True}
    tokenizer = written(tmp_path, words)
    bos, eos, tool = 264, 265, 266
    assert tokenizer.special_ids == {bos, eos}
    assert tokenizer.encode("hello<tool>") == [bos, 259, tool, eos]
    assert tokenizer.decode([bos, 259, tool, eos]) == "hello<tool>"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hello"}]) == "<|bos|>hello"


def test_unused_tokens_are_no_words(tmp_path: Path) -> None:
    words = byte_level_metadata()
    words["tokenizer.ggml.tokens"] = [*words["tokenizer.ggml.tokens"], "zebra"]
    words["tokenizer.ggml.token_type"] = [*words["tokenizer.ggml.token_type"], 5]
    tokenizer = written(tmp_path, words)
    assert len(tokenizer.encode("zebra", add_special_tokens=False)) == 5
    assert tokenizer.decode([len(words["tokenizer.ggml.tokens"]) - 1]) == ""
