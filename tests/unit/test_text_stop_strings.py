"""Stop strings: text is cut where the first one completes, and only what may start one is held."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from kvasir.text.stop_strings import StopChecker

LETTERS = st.text(alphabet="abc", max_size=30)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """By definition: the shortest prefix of the text that ends in a stop; the longest such stop.  (start, stop)."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return end - len(longest), longest
    return None


def may_start(held: str, stops: tuple[str, ...]) -> bool:
    return any(stop.startswith(held) and stop != held for stop in stops)


def cut(text: str, places: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(bounds)]


@given(text=LETTERS, stops=STOPS, places=st.lists(st.integers(0, 30)), include=st.booleans())
@example(text="abcabd", stops=("abcabe", "bcabd"), places=[1, 2, 3, 4, 5], include=False)
@example(text="aaab", stops=("aab",), places=[3], include=True)
def test_streamed_text_is_the_text_up_to_the_first_stop(
    text: str, stops: tuple[str, ...], places: list[int], include: bool
) -> None:
    checker = StopChecker(stops, include_stop=include)
    shown = "".join(checker.push(chunk) for chunk in cut(text, places))
    expected = first_stop(text, stops)
    if expected is None:
        assert checker.matched is None
        assert shown + checker.finish() == text
    else:
        start, stop = expected
        assert checker.matched == stop
        assert shown == text[: start + len(stop) if include else start]
        assert checker.push("abc") == "" and checker.finish() == ""


@given(text=LETTERS, stops=STOPS, places=st.lists(st.integers(0, 30)))
def test_only_the_longest_possible_start_is_held(text: str, stops: tuple[str, ...], places: list[int]) -> None:
    checker = StopChecker(stops)
    taken = shown = ""
    for chunk in cut(text, places):
        taken += chunk
        shown += checker.push(chunk)
        if checker.matched is not None:
            break
        assert shown + checker.held == taken
        longest = next(taken[i:] for i in range(len(taken) + 1) if may_start(taken[i:], stops))
        assert checker.held == longest


def test_two_stops_the_one_complete_first_wins() -> None:
    checker = StopChecker(("abcdef", "cd"))
    assert [checker.push(letter) for letter in "xabcdef"] == ["x", "", "", "", "ab", "", ""]
    assert checker.matched == "cd"


def test_of_two_that_end_together_the_longer_wins() -> None:
    checker = StopChecker(("cd", "bcd"))
    assert "".join(checker.push(letter) for letter in "abcd") == "a"
    assert checker.matched == "bcd"


def test_without_stops_nothing_is_held() -> None:
    checker = StopChecker(())
    assert checker.push("anything") == "anything"
    assert checker.finish() == ""


def test_text_passed_through_cannot_begin_a_stop() -> None:
    checker = StopChecker(("stop",))
    assert checker.pass_through("st") == "st"
    assert checker.push("op") == "op"
    assert checker.push("sto") == ""
    assert checker.push("p") == ""
    assert checker.matched == "stop"
