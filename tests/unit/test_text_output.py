"""Tokens of a sequence become deltas that add up to its text, with logprobs beside the text they explain."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_text_stop_strings import first_stop

from kvasir.core.events import TokensEvent
from kvasir.core.sampling import SamplingParams
from kvasir.core.sequence import FinishReason
from kvasir.core.step import TokenLogprobs
from kvasir.text.output import OutputAssembler, TextDelta
from kvasir.text.tokenizer import Tokenizer
from tiny_tokenizers import CORPUS, END, EOS, byte_level, sentencepiece_like

TOKENIZER = Tokenizer(byte_level(), config={"eos_token": EOS})
EOS_ID = TOKENIZER.eos_ids[0]
TEXTS = st.text(alphabet=sorted(set("".join(CORPUS))), max_size=60)


def logprobs_of(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(-0.5, 1, ((token_id, -0.5), ((token_id + 1) % 600, -1.5)))


def events(
    ids: list[int], sizes: list[int], *, ended: FinishReason | None, logprobs: bool = False
) -> list[TokensEvent]:
    """``ids`` in events of the given sizes (repeated); the last says how the engine ended the sequence, if it did."""
    found: list[TokensEvent] = []
    rest = list(ids)
    for size in itertools.cycle(sizes):
        part, rest = rest[:size], rest[size:]
        is_last = not rest
        found.append(
            TokensEvent(
                request_id="r",
                index=0,
                token_ids=tuple(part),
                logprobs=tuple(logprobs_of(i) for i in part) if logprobs else (),
                finish_reason=ended if is_last else None,
                stop_token_id=part[-1] if is_last and ended is FinishReason.STOP else None,
            )
        )
        if is_last:
            return found
    raise AssertionError


def assembled(assembler: OutputAssembler, stream: list[TokensEvent]) -> list[TextDelta]:
    return [assembler.push(event) for event in stream]


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@given(ids=st.lists(st.integers(0, 599), min_size=1, max_size=60), sizes=SIZES)
def test_deltas_add_up_to_the_decoding(ids: list[int], sizes: list[int]) -> None:
    assembler = OutputAssembler(TOKENIZER, SamplingParams())
    deltas = assembled(assembler, events(ids, sizes, ended=FinishReason.LENGTH))
    assert "".join(delta.text for delta in deltas) == assembler.text == TOKENIZER.decode(ids)
    assert tuple(itertools.chain(*(delta.token_ids for delta in deltas))) == tuple(ids)
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [FinishReason.LENGTH]
    assert not any(delta.must_stop_engine for delta in deltas)


@given(
    text=TEXTS.filter(bool),
    stops=st.lists(st.text(alphabet="etaon ,", min_size=1, max_size=3), min_size=1, max_size=3).map(tuple),
    sizes=SIZES,
    include=st.booleans(),
)
def test_text_ends_at_the_first_stop_string(text: str, stops: tuple[str, ...], sizes: list[int], include: bool) -> None:
    sampling = SamplingParams(stop=stops, include_stop_str_in_output=include)
    assembler = OutputAssembler(TOKENIZER, sampling)
    ids = TOKENIZER.encode(text)
    deltas = assembled(assembler, events(ids, sizes, ended=FinishReason.LENGTH))
    assert "".join(delta.text for delta in deltas) == assembler.text
    expected = first_stop(text, stops)
    if expected is None:
        assert (assembler.text, assembler.finish_reason, assembler.stop_reason) == (text, FinishReason.LENGTH, None)
        return
    start, stop = expected
    assert assembler.text == text[: start + len(stop) if include else start]
    assert (assembler.finish_reason, assembler.stop_reason) == (FinishReason.STOP, stop)
    last = next(i for i, delta in enumerate(deltas) if delta.finish_reason is not None)
    assert deltas[last].must_stop_engine == (last < len(deltas) - 1)
    assert all(delta.is_empty for delta in deltas[last + 1 :])
    assert TOKENIZER.decode(list(assembler.token_ids)).startswith(text[: start + len(stop)])
    assert stop not in TOKENIZER.decode(list(assembler.token_ids[:-1]))[start:]


@pytest.mark.parametrize("skip", [True, False])
def test_eos_has_no_text_and_no_reason(skip: bool) -> None:
    assembler = OutputAssembler(TOKENIZER, SamplingParams(skip_special_tokens=skip))
    ids = [*TOKENIZER.encode("a dog"), EOS_ID]
    delta = assembled(assembler, events(ids, [1], ended=FinishReason.STOP))[-1]
    assert (delta.finish_reason, delta.stop_reason, delta.must_stop_engine) == (FinishReason.STOP, None, False)
    assert assembler.text == "a dog"
    assert assembler.num_tokens == len(ids)


def test_a_stop_token_id_is_the_reason() -> None:
    comma = TOKENIZER.encode(",")[0]
    for include, text in ((False, "dog"), (True, "dog,")):
        sampling = SamplingParams(stop_token_ids=(comma,), include_stop_str_in_output=include)
        assembler = OutputAssembler(TOKENIZER, sampling)
        assembled(assembler, events([*TOKENIZER.encode("dog"), comma], [2], ended=FinishReason.STOP))
        assert (assembler.text, assembler.stop_reason) == (text, comma)


def test_special_tokens_are_shown_when_asked() -> None:
    end = TOKENIZER.token_id(END)
    assert end is not None
    shown = OutputAssembler(TOKENIZER, SamplingParams(skip_special_tokens=False))
    assembled(shown, events([end, *TOKENIZER.encode("a")], [1], ended=FinishReason.LENGTH))
    assert shown.text == f"{END}a"


def test_held_text_comes_out_when_no_stop_came() -> None:
    assembler = OutputAssembler(TOKENIZER, SamplingParams(stop=("dogs!",)))
    ids = TOKENIZER.encode("a dog")
    *_, last = assembled(assembler, events([*ids, EOS_ID], [1], ended=FinishReason.STOP))
    assert last.text == "dog"
    assert assembler.text == "a dog"


def test_a_stop_string_may_begin_only_after_min_tokens() -> None:
    ids = [TOKENIZER.encode(letter)[0] for letter in "xx.xx.xx"]
    assembler = OutputAssembler(TOKENIZER, SamplingParams(stop=("x.",), min_tokens=4))
    assembled(assembler, events(ids, [1], ended=FinishReason.LENGTH))
    assert assembler.text == "xx.x"
    assert assembler.stop_reason == "x."


def test_an_ending_from_outside_flushes() -> None:
    assembler = OutputAssembler(TOKENIZER, SamplingParams(stop=("dogs",)))
    assembled(assembler, events(TOKENIZER.encode("a dog"), [1], ended=None))
    delta = assembler.finish(FinishReason.ERROR)
    assert (delta.text, delta.finish_reason) == ("dog", FinishReason.ERROR)
    assert assembler.finish(FinishReason.ABORT).is_empty
    assert assembler.finish_reason is FinishReason.ERROR


def test_an_aborted_sequence_without_tokens_ends_empty() -> None:
    assembler = OutputAssembler(TOKENIZER, SamplingParams())
    delta = assembler.push(TokensEvent(request_id="r", index=0, token_ids=(), finish_reason=FinishReason.ABORT))
    assert (delta.text, delta.finish_reason, delta.is_empty) == ("", FinishReason.ABORT, False)


@given(text=TEXTS.filter(bool), sizes=SIZES)
def test_logprobs_explain_the_text_token_by_token(text: str, sizes: list[int]) -> None:
    assembler = OutputAssembler(TOKENIZER, SamplingParams(logprobs=2, stop=("zzz", "\U0001f642 s")))
    ids = TOKENIZER.encode(text)
    deltas = assembled(assembler, events(ids, sizes, ended=FinishReason.LENGTH, logprobs=True))
    entries = [entry for delta in deltas for entry in delta.logprobs]
    assert entries == assembler.logprobs
    if assembler.stop_reason is None:
        assert [entry.token_id for entry in entries] == ids
        assert b"".join(entry.data for entry in entries).decode() == assembler.text
    for entry in entries:
        assert entry.text == entry.data.decode(errors="replace")
        assert entry.top[0].token_id == entry.token_id and entry.top[0].text == entry.text
        if "\ufffd" not in entry.text:
            assert assembler.text[entry.offset :].startswith(entry.text) or assembler.stop_reason is not None
    assert [entry.offset for entry in entries] == sorted(entry.offset for entry in entries)


def test_logprobs_never_run_ahead_of_held_text() -> None:
    """A client that stops reading has seen logprobs only of tokens whose text it has seen begin."""
    ids = [TOKENIZER.encode(letter)[0] for letter in "xyzw"]
    assembler = OutputAssembler(TOKENIZER, SamplingParams(logprobs=0, stop=("yz!",)))
    deltas = assembled(assembler, events(ids, [1], ended=FinishReason.LENGTH, logprobs=True))
    assert [(delta.text, [entry.text for entry in delta.logprobs]) for delta in deltas] == [
        ("x", ["x"]),
        ("", []),
        ("", []),
        ("yzw", ["y", "z", "w"]),
    ]


def test_logprobs_end_where_the_text_is_cut() -> None:
    ids = [TOKENIZER.encode(letter)[0] for letter in "xyz"]
    cut = OutputAssembler(TOKENIZER, SamplingParams(logprobs=0, stop=("yz",)))
    assembled(cut, events(ids, [3], ended=None, logprobs=True))
    assert [entry.text for entry in cut.logprobs] == ["x"]
    ended = OutputAssembler(TOKENIZER, SamplingParams(logprobs=0))
    assembled(ended, events([*ids, EOS_ID], [2], ended=FinishReason.STOP, logprobs=True))
    assert [entry.text for entry in ended.logprobs] == ["x", "y", "z"]


def test_continued_text_keeps_sentencepieces_space() -> None:
    tokenizer = Tokenizer(sentencepiece_like(), config={})
    ids = tokenizer.encode("the dog", add_special_tokens=False)
    for going_on, text in ((False, "the dog"), (True, " the dog")):
        assembler = OutputAssembler(tokenizer, SamplingParams(), is_continuation=going_on)
        assembled(assembler, events(ids, [1], ended=FinishReason.LENGTH))
        assert assembler.text == text
