"""Generators: every question can be answered from its text, as long as asked for, the same every time."""

import re
from itertools import islice

import pytest

from kvasir.lab.prose import sentences
from kvasir.lab.tasks.counting import NUM_COMMON, common_words
from kvasir.lab.tasks.haystack import haystack, spread
from kvasir.lab.tasks.needles import multi_key, multi_query, multi_value, needle, needle_haystack, single
from kvasir.lab.tasks.passkey import digits, passkey
from kvasir.lab.tasks.sample import Sample, score
from kvasir.lab.tasks.tracing import NUM_HOPS, variable_tracking


def words(text: str) -> int:
    """Tokens of a tokenizer that anyone can check: words."""
    return len(text.split())


GENERATORS = {
    "passkey": lambda length, seed: passkey(length, 0.5, seed, words),
    "single noise": lambda length, seed: single(length, 0.5, seed, words),
    "single book": lambda length, seed: single(length, 0.5, seed, words, sentences(seed)),
    "multi-key": lambda length, seed: multi_key(length, 0.5, seed, words, sentences(seed)),
    "needles": lambda length, seed: needle_haystack(length, 0.5, seed, words),
    "multi-value": lambda length, seed: multi_value(length, seed, words, sentences(seed)),
    "multi-query": lambda length, seed: multi_query(length, seed, words, sentences(seed)),
    "tracking": lambda length, seed: variable_tracking(length, seed, words),
    "common words": lambda length, seed: common_words(length, seed, words),
}


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("length", [250, 1000])
def test_prompts_are_as_long_as_asked_and_hold_their_answers(name, length):
    sample: Sample = GENERATORS[name](length, 3)
    assert length - 30 <= words(sample.prompt) <= length
    assert score(sample.prompt, sample.answers) == 1.0
    assert score(sample.expected, sample.answers) == 1.0


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_decides_everything(name):
    assert GENERATORS[name](300, 5) == GENERATORS[name](300, 5)
    assert GENERATORS[name](300, 5).answers != GENERATORS[name](300, 6).answers


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
def test_the_needle_lies_at_its_depth(depth):
    sample = passkey(1000, depth, 1, words)
    before = words(sample.prompt.split("The pass key is")[0])
    assert before / 1000 == pytest.approx(depth, abs=0.04)


def test_a_haystack_keeps_the_order_of_its_needles():
    text = haystack(sentences(0), [(0.9, "C."), (0.1, "A."), (0.5, "B."), (0.5, "B2.")], 400, words)
    places = [text.index(mark) for mark in (" A.", " B.", " B2.", " C.")]
    assert places == sorted(places)
    assert words(text) <= 400


def test_needles_that_are_not_asked_for_have_other_keys():
    sample = needle_haystack(600, 0.4, 2, words)
    key = re.search(r"magic number for ([\w-]+) mentioned", sample.prompt)
    assert key is not None
    assert sample.prompt.count(needle(key[1], sample.answers[0])) == 1
    assert len(re.findall(rf"for {key[1]} is:", sample.prompt)) == 1
    assert len(re.findall(r"One of the magic numbers for", sample.prompt)) > 40


def test_tracked_names_all_lead_to_the_value():
    sample = variable_tracking(300, 4, words)
    text = sample.prompt.split("Now the text:")[1]
    value = re.search(r"hold the value (\d+)\?", text)
    assert value is not None
    holding = set(re.findall(rf"VAR (\w+) = {value[1]}\.", text))
    while more := {a for a, b in re.findall(r"VAR (\w+) = VAR (\w+)\.", text) if b in holding} - holding:
        holding |= more
    assert holding == set(sample.answers)
    assert len(holding) == NUM_HOPS + 1


def test_common_words_are_the_common_ones():
    sample = common_words(400, 1, words)
    listed = re.findall(r"\d+\. (\w+)", sample.prompt)
    by_count = sorted(set(listed), key=listed.count, reverse=True)
    assert set(by_count[:NUM_COMMON]) == set(sample.answers)
    assert listed.count(by_count[NUM_COMMON - 1]) >= 3 * listed.count(by_count[NUM_COMMON])


def test_numbers_have_no_digit_twice():
    import random

    for seed in range(50):
        number = digits(random.Random(seed), 7)
        assert len(set(number)) == 7 and number[0] != "0"


def test_answers_are_found_as_whole_words_only():
    assert score("It is 123.", ("123",)) == 1.0
    assert score("It is 51234.", ("123",)) == 0.0
    assert score("A and b", ("a", "B", "c", "d")) == 0.5


def test_filler_has_no_digits_and_seldom_repeats():
    made = list(islice(sentences(0), 300))
    assert not any(character.isdigit() for sentence in made for character in sentence)
    assert len(set(made)) > 200


def test_depths_are_spread_from_end_to_end():
    assert spread(3) == [0.0, 0.5, 1.0]
    assert spread(1) == [0.5]
