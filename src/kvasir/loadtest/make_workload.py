"""From settings to a workload: one maker for each kind, and the check that it fits the server's context."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvasir.core.errors import ConfigError
from kvasir.loadtest.plan import Workload
from kvasir.loadtest.prompt_maker import PromptMaker, WordRate
from kvasir.loadtest.recorded_traffic import TracePlay, traffic
from kvasir.loadtest.recordings import Playback, recorded
from kvasir.loadtest.settings import WorkloadKind, WorkloadSettings
from kvasir.loadtest.workloads import Chats, Lengths, SharedPrefixes, chats, lone_prompts, shared_prefixes
from kvasir.workload.lengths import LengthRange

DEFAULT_SESSIONS = 100
_DEFAULT_OUTPUT = LengthRange(low=128, high=128)
_MESSAGE_TOKENS = 8
"""What a chat template may add for one message; only the check of the context needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadMaker:
    """Makes the same workload for the same ``seed``, and for another seed one that shares no prefix with it (files
    of texts apart, whose texts are what they are)."""

    settings: WorkloadSettings
    rate: WordRate
    max_model_len: int | None
    is_chat_route: bool

    @property
    def max_tokens(self) -> int | None:
        return self.settings.max_context or self.max_model_len

    def make(self, num_sessions: int | None, seed: int) -> Workload:
        """Raises ``ConfigError`` when requests are longer than the server's context."""
        self._check_lengths()
        first_id, last_id = self.settings.token_ids
        maker = PromptMaker(kind=self.settings.prompts, seed=seed, rate=self.rate, first_id=first_id, last_id=last_id)
        return _MAKERS[self.settings.kind](self, maker, num_sessions, seed)

    @property
    def lengths(self) -> Lengths:
        return Lengths(prompt=self.settings.prompt_tokens, output=self.settings.output_tokens or _DEFAULT_OUTPUT)

    @property
    def longest_tokens(self) -> int | None:
        """The longest request, prompt and answer, of a workload that is made; None for recorded ones."""
        settings, lengths = self.settings, self.lengths
        turn = lengths.prompt.high + lengths.output.high
        if settings.kind is WorkloadKind.SHARED_PREFIX:
            return settings.prefix_tokens + turn
        if settings.kind is WorkloadKind.CHAT:
            return settings.system_tokens + settings.num_turns * (turn + 2 * _MESSAGE_TOKENS)
        return None if settings.kind.needs_file else turn

    def _check_lengths(self) -> None:
        longest, limit = self.longest_tokens, self.max_tokens
        if longest is not None and limit is not None and longest > limit:
            raise ConfigError(
                f"The longest request of this load has {longest:,} tokens (prompt and answer), but the server's "
                f"context is {limit:,}; lower --input-tokens, --output-tokens or what goes before."
            )

    def _path(self) -> Path:
        assert self.settings.path is not None  # checked by the settings
        return self.settings.path


def _random(make: WorkloadMaker, maker: PromptMaker, num_sessions: int | None, _: int) -> Workload:
    return lone_prompts(make.lengths, maker, num_sessions or DEFAULT_SESSIONS)


def _shared(make: WorkloadMaker, maker: PromptMaker, num_sessions: int | None, _: int) -> Workload:
    shape = SharedPrefixes(
        prefix_tokens=make.settings.prefix_tokens, num_prefixes=make.settings.num_prefixes, lengths=make.lengths
    )
    return shared_prefixes(shape, maker, num_sessions or DEFAULT_SESSIONS)


def _chat(make: WorkloadMaker, maker: PromptMaker, num_sessions: int | None, _: int) -> Workload:
    settings = make.settings
    shape = Chats(
        num_turns=settings.num_turns,
        system_tokens=settings.system_tokens,
        think_s=settings.think_s,
        lengths=make.lengths,
    )
    return chats(shape, maker, num_sessions or DEFAULT_SESSIONS)


def _file(make: WorkloadMaker, _: PromptMaker, num_sessions: int | None, seed: int) -> Workload:
    output = make.settings.output_tokens
    if output is not None and output.low != output.high:
        raise ConfigError("The file workload takes one answer length for all, or none for the recorded ones.")
    playback = Playback(
        count_tokens=make.rate.num_tokens,
        num_turns=make.settings.num_turns,
        num_output_tokens=None if output is None else output.high,
        max_tokens=make.max_tokens,
        is_chat=make.is_chat_route,
    )
    return recorded(make._path(), playback, num_sessions or DEFAULT_SESSIONS, seed)


def _trace(make: WorkloadMaker, maker: PromptMaker, num_sessions: int | None, seed: int) -> Workload:
    settings = make.settings
    play = TracePlay(
        path=make._path(),
        trace_format=settings.trace_format,
        hash_block_size=settings.hash_block_size,
        speed=settings.speed,
        max_tokens=make.max_tokens,
        follows_sessions=settings.follows_sessions,
    )
    return traffic(play, maker, num_sessions, seed)


_MAKERS: dict[WorkloadKind, Callable[[WorkloadMaker, PromptMaker, int | None, int], Workload]] = {
    WorkloadKind.RANDOM: _random,
    WorkloadKind.SHARED_PREFIX: _shared,
    WorkloadKind.CHAT: _chat,
    WorkloadKind.FILE: _file,
    WorkloadKind.TRACE: _trace,
}
