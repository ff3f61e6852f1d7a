"""Finds stop strings in a stream of text and holds back only what may be the start of one."""

from collections import deque
from functools import lru_cache


class StopAutomaton:
    """Aho and Corasick's automaton (CACM 18(6), 1975) over the stop strings of a request.

    State ``s`` stands for the longest suffix of the text that starts some stop string; ``depths[s]`` is its length,
    which is therefore exactly what must be held back.  ``matches[s]`` is the longest stop string that ends here.
    """

    __slots__ = ("depths", "edges", "fallbacks", "matches")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.edges: list[dict[str, int]] = [{}]
        self.depths = [0]
        self.matches: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self.fallbacks = [0] * len(self.edges)
        self._link()

    def step(self, state: int, letter: str) -> int:
        while state and letter not in self.edges[state]:
            state = self.fallbacks[state]
        return self.edges[state].get(letter, 0)

    def _insert(self, stop: str) -> None:
        state = 0
        for letter in stop:
            if letter not in self.edges[state]:
                self.edges[state][letter] = len(self.edges)
                self.edges.append({})
                self.depths.append(self.depths[state] + 1)
                self.matches.append(None)
            state = self.edges[state][letter]
        self.matches[state] = stop

    def _link(self) -> None:
        queue = deque(self.edges[0].values())
        while queue:
            state = queue.popleft()
            for letter, child in self.edges[state].items():
                self.fallbacks[child] = self.step(self.fallbacks[state], letter)
                if self.matches[child] is None:
                    self.matches[child] = self.matches[self.fallbacks[child]]
                queue.append(child)


@lru_cache(maxsize=256)
def _automaton(stops: tuple[str, ...]) -> StopAutomaton:
    return StopAutomaton(stops)


class StopChecker:
    """One stream against its stop strings.  ``matched`` is the stop string that ended it, else None.

    The stop that is complete first, reading letter by letter, wins; of two that end together, the longer.  So the
    answer does not depend on how the text is cut into tokens.  After a match nothing more is accepted.
    """

    def __init__(self, stops: tuple[str, ...], *, include_stop: bool = False) -> None:
        self._automaton = _automaton(stops) if stops else None
        self._include_stop = include_stop
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    @property
    def held(self) -> str:
        """Text taken in, not given out: a proper prefix of a stop string."""
        return self._held

    def push(self, text: str) -> str:
        """Take ``text`` in and return what can be shown now."""
        if self.matched is not None:
            return ""
        automaton = self._automaton
        if automaton is None:
            return text
        state = self._state
        for i, letter in enumerate(text):
            state = automaton.step(state, letter)
            stop = automaton.matches[state]
            if stop is not None:
                return self._end(self._held + text[: i + 1], stop)
        self._state = state
        pending = self._held + text
        cut = len(pending) - automaton.depths[state]
        self._held = pending[cut:]
        return pending[:cut]

    def pass_through(self, text: str) -> str:
        """Show ``text`` unsearched (before ``min_tokens``); a stop string may begin only after it."""
        released = self._held + text
        self._held, self._state = "", 0
        return released

    def finish(self) -> str:
        """The stream ended otherwise: return the held text."""
        released, self._held = self._held, ""
        return released

    def _end(self, pending: str, stop: str) -> str:
        self.matched, self._held = stop, ""
        return pending if self._include_stop else pending[: len(pending) - len(stop)]
