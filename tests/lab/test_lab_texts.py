"""Where running text comes from: files cut evenly, the reference's own writing, made-up prose for haystacks."""

from itertools import islice

import pytest
from lab_setup import SIXTEEN_BITS, small_lab

from kvasir.core.errors import ConfigError
from kvasir.lab.prose import sentences
from kvasir.lab.setting import Setting
from kvasir.lab.texts import FileTexts, NoTexts, SelfTexts
from kvasir.text.tokenizer import Tokenizer


@pytest.fixture
def book(tmp_path):
    made = sentences(0)
    file = tmp_path / "book.txt"
    file.write_text("= Heading =\n\n" + "\n".join(next(made) for _ in range(400)))
    return file


@pytest.fixture
def tokenizer(induction_model) -> Tokenizer:
    return Tokenizer.from_folder(induction_model)


def test_passages_are_cut_evenly_and_begin_as_the_model_expects(book, tokenizer):
    texts = FileTexts([book], tokenizer)
    passages = texts.passages(4, 200)
    assert [len(passage.token_ids) for passage in passages] == [200] * 4
    assert {passage.token_ids[0] for passage in passages} == {tokenizer.bos_id}
    assert len({passage.token_ids[1:] for passage in passages}) == 4
    whole = tokenizer.encode(book.read_text(), add_special_tokens=False)
    assert passages[0].token_ids[1:] == tuple(whole[:199])
    assert passages[-1].token_ids[1:] == tuple(whole[-199:])
    assert texts.passages(4, 200) == passages


def test_two_files_take_turns(book, tokenizer, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("Nothing but this. " * 500)
    passages = FileTexts([book, other], tokenizer).passages(4, 100)
    said = [tokenizer.decode(passage.token_ids) for passage in passages]
    assert ["Nothing but this" in text for text in said] == [False, True, False, True]


def test_texts_that_are_too_short_are_refused_with_the_numbers(book, tokenizer):
    with pytest.raises(ConfigError, match="No text has 1000000 tokens"):
        FileTexts([book], tokenizer).passages(1, 1_000_000)


def test_a_text_that_cannot_be_read_is_refused(tmp_path, tokenizer):
    with pytest.raises(ConfigError, match="cannot be read"):
        FileTexts([tmp_path / "none.txt"], tokenizer)


def test_filler_from_a_file_leaves_headings_out_and_never_ends(book, tokenizer):
    filler = list(islice(FileTexts([book], tokenizer).sentences(3), 1000))
    assert len(filler) == 1000 and not any("Heading" in line for line in filler)


def test_sentences_of_books_and_of_encyclopaedias(tmp_path, tokenizer):
    """Hard-wrapped lines are joined, long paragraphs are cut, headings and scraps are dropped."""
    file = tmp_path / "text.raw"
    file.write_text(
        " \n = The Whale = \n \n It is a mammal of the sea . It breathes air , as all of them do ! Yes . \n"
        "\nCall me whatever you\nlike, for I am a book. Some years ago,\nnever mind how long, I was written.\n"
    )
    filler = FileTexts([file], tokenizer).sentences(0)
    assert list(islice(filler, 4)) == [
        "It is a mammal of the sea .",
        "It breathes air , as all of them do !",
        "Call me whatever you like, for I am a book.",
        "Some years ago, never mind how long, I was written.",
    ]


def test_the_reference_writes_its_own_text(induction_model):
    """Through the chat template, as long as asked, the same every time, and different for every prompt."""
    with small_lab(induction_model, [Setting(name="same", flags=SIXTEEN_BITS)]) as lab:
        assert isinstance(lab.texts, SelfTexts)
        passages = lab.texts.passages(3, 120)
        assert [len(passage.token_ids) for passage in passages] == [120] * 3
        assert all(
            lab.tokenizer.decode(p.token_ids[: p.start], skip_special_tokens=False).startswith("<|bos|><|user|>")
            for p in passages
        )
        assert len({passage.token_ids for passage in passages}) == 3
        again = SelfTexts(lab.reference).passages(3, 120)  # type: ignore[arg-type]
        assert again == passages


def test_servers_alone_have_no_passages():
    with pytest.raises(ConfigError, match="runs here"):
        NoTexts().passages(1, 10)
    assert next(NoTexts().sentences(0))
