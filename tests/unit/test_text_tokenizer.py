"""The tokenizer of a folder: special ids from wherever they are written, text there and back."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from kvasir.core.errors import ModelError
from kvasir.text.tokenizer import Tokenizer
from tiny_tokenizers import BOS, CORPUS, END, EOS, byte_level

PLAIN = Tokenizer(byte_level(), config={})


def folder_with(folder: Path, **files: dict[str, Any]) -> Path:
    byte_level().save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_special_ids_come_from_every_file_that_names_them(tmp_path: Path) -> None:
    backend = byte_level()
    ids = {text: backend.token_to_id(text) for text in (BOS, EOS, END)}
    tokenizer = Tokenizer.from_folder(
        folder_with(
            tmp_path,
            tokenizer_config={"bos_token": {"content": BOS}, "eos_token": EOS},
            generation_config={"eos_token_id": [ids[END], ids[EOS]]},
            config={"eos_token_id": 7},
        )
    )
    assert tokenizer.bos_id == ids[BOS]
    assert tokenizer.eos_ids == (ids[END], ids[EOS], 7)
    assert tokenizer.special_ids == set(ids.values())
    assert tokenizer.vocab_size == backend.get_vocab_size()
    assert tokenizer.token_id(END) == ids[END] and tokenizer.token_id("nowhere") is None


def test_special_tokens_map_is_the_older_place(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, special_tokens_map={"eos_token": EOS}))
    assert tokenizer.eos_ids == (byte_level().token_to_id(EOS),)
    assert tokenizer.bos_id is None


@given(text=st.text(max_size=50))
def test_any_text_comes_back(text: str) -> None:
    assert PLAIN.decode(PLAIN.encode(text)) == text


@pytest.mark.parametrize("flag", [True, False])
def test_tokenizer_config_decides_about_bos_and_eos(flag: bool) -> None:
    """Hugging Face lets add_bos_token and add_eos_token win over the post-processor of tokenizer.json."""
    config = {"bos_token": BOS, "eos_token": EOS, "add_bos_token": flag, "add_eos_token": flag}
    tokenizer = Tokenizer(byte_level(adds_bos=not flag), config=config)
    plain = byte_level().encode("a dog").ids
    edges = ([tokenizer.bos_id], [tokenizer.eos_ids[0]]) if flag else ([], [])
    assert tokenizer.encode("a dog") == [*edges[0], *plain, *edges[1]]
    assert tokenizer.encode("a dog", add_special_tokens=False) == plain
    assert tokenizer.adds_bos is flag


def test_a_suffix_of_the_post_processor_is_kept() -> None:
    backend = byte_level()
    end = backend.token_to_id(END)
    backend.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, end)])
    tokenizer = Tokenizer(backend, config={})
    assert tokenizer.encode("a dog")[-1] == end
    assert tokenizer.encode("") == [end]


def test_truncation_and_padding_of_the_file_are_ignored() -> None:
    """Some tokenizer.json files carry the training length; a server must never cut a prompt silently."""
    backend = byte_level()
    backend.enable_truncation(max_length=4)
    backend.enable_padding(length=64)
    tokenizer = Tokenizer(backend, config={})
    assert tokenizer.decode(tokenizer.encode(CORPUS[0])) == CORPUS[0]


def test_ids_outside_the_vocabulary_have_no_text() -> None:
    """Embeddings are often padded beyond the tokenizer; a model may draw such an id."""
    tokenizer = Tokenizer(byte_level(), config={})
    ids = tokenizer.encode("dog")
    assert tokenizer.decode([tokenizer.vocab_size, *ids, 10**9, -1]) == "dog"


@pytest.mark.parametrize("broken", ["tokenizer.json", "config.json"])
def test_unreadable_files_are_refused(tmp_path: Path, broken: str) -> None:
    folder_with(tmp_path)
    (tmp_path / broken).write_text("{")
    with pytest.raises(ModelError, match=broken.replace(".", r"\.")):
        Tokenizer.from_folder(tmp_path)


def test_loading_needs_no_transformers_and_no_torch(demo_model: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from kvasir.text.tokenizer import Tokenizer; from kvasir.text.output import OutputAssembler; "
        "t = Tokenizer.from_folder(sys.argv[1]); t.encode_chat([{'role': 'user', 'content': 'hi'}]); "
        "print(sorted({'torch', 'transformers', 'numpy', 'gguf'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(demo_model)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
