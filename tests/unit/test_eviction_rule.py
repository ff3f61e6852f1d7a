"""EvictionRule: counts, protection, and how it is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.core.errors import ConfigError
from kvasir.kv.eviction import EvictionKind, EvictionRule, parse_eviction

RULES = st.builds(
    EvictionRule,
    kind=st.sampled_from(EvictionKind),
    keep=st.floats(0.01, 1.0),
    sinks=st.integers(0, 40),
    recent=st.integers(0, 200),
)


@given(rule=RULES, num_prompt=st.integers(1, 3000), pinned=st.integers(0, 3000))
def test_what_is_protected_is_kept_and_never_more_than_there_is(rule, num_prompt, pinned):
    pinned = min(pinned, num_prompt)
    kept, first = rule.num_kept(num_prompt, pinned), rule.num_first(num_prompt, pinned)
    assert 1 <= kept <= num_prompt
    assert first >= min(pinned, num_prompt)
    assert kept >= min(num_prompt, first + rule.recent)
    assert kept >= rule.keep * num_prompt - 1e-5
    assert kept + rule.num_evicted(num_prompt, pinned) == num_prompt


def test_counts_are_what_a_person_would_say():
    rule = parse_eviction("keydiff:keep=0.1,sinks=0,recent=0")
    assert [rule.num_kept(num) for num in (1, 10, 30, 31, 1000)] == [1, 1, 3, 4, 100]
    assert parse_eviction("keydiff:keep=1.0").num_evicted(5000) == 0
    assert parse_eviction("random:keep=0.5,sinks=4,recent=8").num_kept(1000, num_pinned=700) == 708


@pytest.mark.parametrize(
    "text",
    [
        "keydiff:keep=0.5,sinks=16,recent=64",
        "random:keep=0.25,sinks=0,recent=8,seed=7",
        "keydiff:keep=1,sinks=1,recent=0",
    ],
)
def test_written_and_read_again(text):
    assert str(parse_eviction(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h2o:keep=0.5", "no eviction 'h2o'.*keydiff:keep=0.5"),
        ("keydiff", "keep is missing"),
        ("keydiff:keep=0.5,seed=3", "'seed=3' is not one of its options"),
        ("random:keep=0.5,keep=0.6", "each given once"),
        ("random:keep=half", "keep is a number"),
        ("random:keep=0.5,sinks=1.5", "whole numbers"),
    ],
)
def test_what_is_not_understood_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_eviction(text)


@pytest.mark.parametrize("text", ["keydiff:keep=0", "keydiff:keep=1.1", "random:keep=0.5,recent=-1", "random:keep=nan"])
def test_what_cannot_be_is_refused(text):
    with pytest.raises(ConfigError, match="--kv-eviction"):
        parse_eviction(text)
