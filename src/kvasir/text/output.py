"""One sequence's tokens to what a client reads: text deltas, aligned logprobs, why it ended."""

from collections import deque
from dataclasses import dataclass

from kvasir.core.events import TokensEvent
from kvasir.core.sampling import SamplingParams
from kvasir.core.sequence import FinishReason
from kvasir.core.step import TokenLogprobs
from kvasir.text.stop_strings import StopChecker
from kvasir.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprob:
    token_id: int
    text: str
    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token of the output with its alternatives, best first.  ``data`` are its own bytes, ``text`` the same as a
    string (U+FFFD for a part of a character), ``offset`` where it begins in the sequence's text, in characters."""

    token_id: int
    text: str
    data: bytes
    logprob: float
    rank: int
    offset: int
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """What one event adds.  ``finish_reason`` is set on a sequence's last delta, with ``stop_reason``: the stop string
    or the stop token id that ended it, None for the model's own end.

    ``must_stop_engine``: a stop string ended the sequence and the engine, which knows no text, is still at it.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    must_stop_engine: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.text and not self.logprobs and self.finish_reason is None


NOTHING = TextDelta()


class OutputAssembler:
    """State of one sequence.  Feed it every ``TokensEvent`` of that sequence, in order.

    ``text``, ``token_ids``, ``finish_reason`` and ``stop_reason`` are the whole so far; ``num_tokens`` counts every
    generated token up to the end, the stop token too.  Text that may be the start of a stop string is held until it
    is decided; the last delta brings whatever was held when no stop came.  The token that ended the sequence (EOS,
    stop token id) has no text unless ``include_stop_str_in_output`` asks for it.  Logprobs come with the delta that
    shows the first character of their token.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams, *, is_continuation: bool = False) -> None:
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._detokenizer = tokenizer.detokenizer(
            skip_special_tokens=sampling.skip_special_tokens, is_continuation=is_continuation
        )
        self._checker = StopChecker(sampling.stop, include_stop=sampling.include_stop_str_in_output)
        self._parts: list[str] = []
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()
        self._num_decoded = 0
        self._num_shown = 0
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self._parts)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def push(self, event: TokensEvent) -> TextDelta:
        """The delta of ``event``; nothing when the sequence has ended already (late tokens of a stopped sequence)."""
        if self.finish_reason is not None:
            return NOTHING
        first = len(self.token_ids)
        shown: list[str] = []
        num_silent = self._num_silent(event)
        for i, token_id in enumerate(event.token_ids):
            logprobs = event.logprobs[i] if event.logprobs else None
            self.token_ids.append(token_id)
            if i < len(event.token_ids) - num_silent:
                shown.append(self._take(token_id, logprobs))
            if self._checker.matched is not None:
                return self._stopped_by_string(first, shown, must_stop_engine=event.finish_reason is None)
        if event.finish_reason is None:
            return self._delta(shown, first)
        return self._finished(event, first, shown)

    def finish(self, reason: FinishReason) -> TextDelta:
        """End the sequence from outside (its engine died, its client left); nothing when it had ended already."""
        if self.finish_reason is not None:
            return NOTHING
        shown = self._flush()
        if self._checker.matched is not None:
            return self._stopped_by_string(len(self.token_ids), shown, must_stop_engine=False)
        self.finish_reason = reason
        return self._delta(shown, len(self.token_ids))

    def _num_silent(self, event: TokensEvent) -> int:
        """Tokens at the event's end without text: the one that ended the sequence, or none."""
        is_stop = event.finish_reason is FinishReason.STOP and event.stop_token_id is not None
        return 1 if is_stop and not self._sampling.include_stop_str_in_output else 0

    def _take(self, token_id: int, logprobs: TokenLogprobs | None) -> str:
        if logprobs is not None:
            self._waiting.append((self._num_decoded, self._entry(token_id, logprobs)))
        text = self._detokenizer.push(token_id)
        return self._check(text, is_searched=len(self.token_ids) > self._sampling.min_tokens)

    def _check(self, text: str, *, is_searched: bool) -> str:
        self._num_decoded += len(text)
        return self._checker.push(text) if is_searched else self._checker.pass_through(text)

    def _flush(self) -> list[str]:
        """The character that never got whole, then, unless that completed a stop string, the held text."""
        rest = self._check(self._detokenizer.finish(), is_searched=True)
        return [rest] if self._checker.matched is not None else [rest, self._checker.finish()]

    def _finished(self, event: TokensEvent, first: int, shown: list[str]) -> TextDelta:
        shown += self._flush()
        if self._checker.matched is not None:
            return self._stopped_by_string(first, shown, must_stop_engine=False)
        self.finish_reason = event.finish_reason
        if event.stop_token_id is not None and event.stop_token_id in self._sampling.stop_token_ids:
            self.stop_reason = event.stop_token_id
        return self._delta(shown, first)

    def _stopped_by_string(self, first: int, shown: list[str], *, must_stop_engine: bool) -> TextDelta:
        self.finish_reason = FinishReason.STOP
        self.stop_reason = self._checker.matched
        delta = self._delta(shown, first, must_stop_engine=must_stop_engine)
        self._waiting.clear()
        return delta

    def _delta(self, shown: list[str], first: int, *, must_stop_engine: bool = False) -> TextDelta:
        text = "".join(shown)
        self._parts.append(text)
        self._num_shown += len(text)
        logprobs = self._released()
        self.logprobs += logprobs
        return TextDelta(
            text=text,
            token_ids=tuple(self.token_ids[first:]),
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            must_stop_engine=must_stop_engine,
        )

    def _released(self) -> tuple[TokenLogprob, ...]:
        """Waiting entries whose first character is shown; at an end without a stop string, all of them."""
        is_all = self.finish_reason is not None and self._checker.matched is None
        released: list[TokenLogprob] = []
        while self._waiting and (is_all or self._waiting[0][0] < self._num_shown):
            released.append(self._waiting.popleft()[1])
        return tuple(released)

    def _entry(self, token_id: int, logprobs: TokenLogprobs) -> TokenLogprob:
        data = self._tokenizer.token_bytes
        text = self._tokenizer.token_text
        return TokenLogprob(
            token_id=token_id,
            text=text(token_id),
            data=data[token_id],
            logprob=logprobs.logprob,
            rank=logprobs.rank,
            offset=self._num_decoded,
            top=tuple(TopLogprob(token_id=i, text=text(i), data=data[i], logprob=p) for i, p in logprobs.top),
        )
