"""Real faults of stop strings in streams elsewhere, each kept out here."""

from pathlib import Path

import pytest

from kvasir.core.events import TokensEvent
from kvasir.core.sampling import SamplingParams
from kvasir.core.sequence import FinishReason
from kvasir.text.output import OutputAssembler, TextDelta
from kvasir.text.tokenizer import Tokenizer
from tiny_tokenizers import byte_level


def streamed(tokenizer: Tokenizer, ids: list[int], stop: str, *, num_each: int = 1) -> list[TextDelta]:
    assembler = OutputAssembler(tokenizer, SamplingParams(stop=(stop,), temperature=0.0))
    deltas: list[TextDelta] = []
    for start in range(0, len(ids), num_each):
        part = tuple(ids[start : start + num_each])
        reason = FinishReason.LENGTH if start + num_each >= len(ids) else None
        deltas.append(assembler.push(TokensEvent(request_id="r", index=0, token_ids=part, finish_reason=reason)))
    return deltas


def letters(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token a letter."""
    return [tokenizer.encode(letter)[0] for letter in text]


@pytest.mark.parametrize("num_each", [1, 2, 3, 5])
def test_O1_no_part_of_a_stop_string_is_ever_sent(num_each: int) -> None:
    tokenizer = Tokenizer(byte_level(), config={})
    deltas = streamed(tokenizer, letters(tokenizer, "ABCDEFGHIJKLM"), "DEFGHIJ", num_each=num_each)
    assert "".join(delta.text for delta in deltas) == "ABC"
    ended = [delta for delta in deltas if delta.finish_reason is not None]
    assert [(delta.finish_reason, delta.stop_reason) for delta in ended] == [(FinishReason.STOP, "DEFGHIJ")]
    assert ended[0].must_stop_engine


def test_O1_text_that_cannot_start_a_stop_string_is_sent_at_once() -> None:
    """A fixed-length hold would send empty first chunks."""
    tokenizer = Tokenizer(byte_level(), config={})
    deltas = streamed(tokenizer, letters(tokenizer, "ABCDEFxDEFG"), "DEFGHIJ")
    assert [delta.text for delta in deltas] == ["A", "B", "C", "", "", "", "DEFx", "", "", "", "DEFG"]
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_O1_with_the_embedded_models_tokens(demo_model: Path) -> None:
    tokenizer = Tokenizer.from_folder(demo_model)
    ids = tokenizer.encode("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert len(ids) < 26  # the stop string begins or ends inside a token
    assert "".join(delta.text for delta in streamed(tokenizer, ids, "DEFGHIJ")) == "ABC"
