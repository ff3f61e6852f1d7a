"""Broken text in numbers: the indicators, and the measure around them."""

import zlib

import pytest
from lab_planted import planted_lab

from kvasir.lab.degenerate import distinct_share, first_difference, has_loop, repeated_share, zlib_ratio
from kvasir.lab.measures.degeneration import Degeneration
from kvasir.lab.prose import sentences

FRESH = list(range(100))


def test_repetition():
    assert repeated_share(FRESH, 4) == 0.0
    assert repeated_share([1, 2, 3, 4] * 25, 4) == pytest.approx(1 - 4 / 97)
    assert repeated_share([1, 2], 4) == 0.0
    assert distinct_share([1, 1, 1, 1, 1], 2) == 0.25


@pytest.mark.parametrize("period", [1, 2, 7, 64])
def test_a_loop_at_the_end_is_found(period):
    loop = list(range(1000, 1000 + period))
    assert has_loop([*FRESH, *loop * max(3, -(-12 // period))])


@pytest.mark.parametrize(
    "tokens",
    [FRESH, [*FRESH, 1, 2, 3] * 2, [*[5] * 40, *FRESH], [*FRESH, 9, 9, 9], [], [*FRESH, *[1, 2, 3] * 3]],
    ids=["fresh", "twice", "loop at the start", "three dots", "nothing", "too short to tell"],
)
def test_what_is_no_loop(tokens):
    assert not has_loop(tokens)


def test_repeated_text_compresses():
    made = sentences(0)
    text = " ".join(next(made) for _ in range(12))
    assert 1.3 < zlib_ratio(text) < 2.4
    assert zlib_ratio("I am stuck. " * 60) > 20
    assert zlib_ratio("") == 1.0


def test_where_two_texts_part():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_a_setting_that_stammers_is_flagged():
    """Servers only: no one here can read the text token by token, but repetition shows without that."""

    def prose(chat):
        made = sentences(zlib.crc32(chat.turns[0].encode()) % 1000 + chat.seed)
        return " ".join(next(made) for _ in range(8))

    lab = planted_lab(good=prose, broken=lambda chat: prose(chat)[:60] + " and so on" * 60)
    result = lab.run(Degeneration(num_prompts=8, num_tokens=100))
    broken = result.settings["broken"].overall
    assert broken["loops"].value == 1.0 and broken["zlib"].value > 5
    assert 0 < broken["common"].value < 30
    assert result.settings["good"].overall["loops"].value == 0.0
    assert [metric.key for metric in result.flags("broken", [lab.floor.name])] == ["rep4_rise"]
    assert "improbable" not in broken
