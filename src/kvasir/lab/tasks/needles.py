"""Needles in haystacks after RULER (Hsieh et al., arXiv 2404.06654; wording and word lists ours)."""

import random
from collections.abc import Iterable, Iterator
from itertools import islice

from kvasir.lab.tasks.haystack import TokenCounter, haystack, noise, spread
from kvasir.lab.tasks.passkey import digits
from kvasir.lab.tasks.sample import Sample

_ADJECTIVES = (
    *("amber", "brave", "calm", "distant", "early", "faithful", "gentle", "hollow", "icy", "jolly", "keen", "lunar"),
    *("mellow", "noble", "olive", "proud", "quiet", "rustic", "silver", "tidy", "urban", "vivid", "windy", "young"),
)
_NOUNS = (
    *("anchor", "bridge", "candle", "desert", "engine", "feather", "garden", "hammer", "island", "jacket", "kettle"),
    *("ladder", "meadow", "needle", "orchard", "pencil", "quarry", "ribbon", "saddle", "tunnel", "valley", "wagon"),
)
_VALUE_DIGITS = 7
_OPENING = "Some magic numbers are hidden in the text below. Remember them; you will be asked about them.\n\n"


def needle(key: str, value: str) -> str:
    return f"One of the magic numbers for {key} is: {value}."


def _keys(rng: random.Random) -> Iterator[str]:
    """All adjective-noun names, in an order of their own."""
    names = [f"{adjective}-{noun}" for adjective in _ADJECTIVES for noun in _NOUNS]
    rng.shuffle(names)
    return iter(names)


def single(length: int, depth: float, seed: int, count: TokenCounter, book: Iterable[str] | None = None) -> Sample:
    """One needle; the haystack is noise, or ``book``: running text."""
    rng = random.Random(seed)
    key, value = next(_keys(rng)), digits(rng, _VALUE_DIGITS)
    question = _question(key)
    text = haystack(book or noise(), [(depth, needle(key, value))], _room(length, question, count), count)
    task = "single needle, noise" if book is None else "single needle, book"
    return _sample(task, text, question, key, (value,), length, depth)


def multi_key(length: int, depth: float, seed: int, count: TokenCounter, book: Iterable[str]) -> Sample:
    """Four needles with different keys in running text; one is asked for."""
    rng = random.Random(seed)
    names = list(islice(_keys(rng), 4))
    values = [digits(rng, _VALUE_DIGITS) for _ in names]
    depths = [depth, *(rng.random() for _ in names[1:])]
    needles = [(at, needle(key, value)) for at, key, value in zip(depths, names, values, strict=True)]
    question = _question(names[0])
    text = haystack(book, needles, _room(length, question, count), count)
    return _sample("multi-key", text, question, names[0], (values[0],), length, depth)


def needle_haystack(length: int, depth: float, seed: int, count: TokenCounter) -> Sample:
    """Nothing but needles: every sentence looks like the one that is asked for."""
    rng = random.Random(seed)
    names = _keys(rng)
    key, value = next(names), digits(rng, _VALUE_DIGITS)
    others = (needle(name, digits(rng, _VALUE_DIGITS)) for name in names)
    question = _question(key)
    text = haystack(others, [(depth, needle(key, value))], _room(length, question, count), count)
    return _sample("haystack of needles", text, question, key, (value,), length, depth)


def multi_value(length: int, seed: int, count: TokenCounter, book: Iterable[str]) -> Sample:
    """Four numbers of one key, spread over running text; all are asked for."""
    rng = random.Random(seed)
    key = next(_keys(rng))
    values = tuple(digits(rng, _VALUE_DIGITS) for _ in range(4))
    needles = [(at, needle(key, value)) for at, value in zip(spread(4, 0.1, 0.9), values, strict=True)]
    question = f"What are all the magic numbers for {key} mentioned in the text?"
    text = haystack(book, needles, _room(length, question, count), count)
    lead = f"The magic numbers for {key} mentioned in the text are"
    return Sample(
        task="multi-value",
        prompt=_prompt(text, question),
        answers=values,
        lead=lead,
        length=length,
        max_tokens=96,
    )


def multi_query(length: int, seed: int, count: TokenCounter, book: Iterable[str]) -> Sample:
    """Four needles with different keys; all are asked for."""
    rng = random.Random(seed)
    names = list(islice(_keys(rng), 4))
    values = tuple(digits(rng, _VALUE_DIGITS) for _ in names)
    needles = [(at, needle(key, value)) for at, key, value in zip(spread(4, 0.1, 0.9), names, values, strict=True)]
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    question = f"What are the magic numbers for {listed} mentioned in the text?"
    text = haystack(book, needles, _room(length, question, count), count)
    return Sample(
        task="multi-query",
        prompt=_prompt(text, question),
        answers=values,
        lead=f"The magic numbers for {listed} mentioned in the text are",
        length=length,
        max_tokens=96,
    )


def _question(key: str) -> str:
    return f"What is the magic number for {key} mentioned in the text?"


def _prompt(text: str, question: str) -> str:
    return f"{_OPENING}{text}\n\n{question}"


def _room(length: int, question: str, count: TokenCounter) -> int:
    return length - count(_prompt("", question))


def _sample(
    task: str, text: str, question: str, key: str, answers: tuple[str, ...], length: int, depth: float
) -> Sample:
    return Sample(
        task=task,
        prompt=_prompt(text, question),
        answers=answers,
        lead=f"The magic number for {key} mentioned in the text is",
        length=length,
        depth=depth,
    )
