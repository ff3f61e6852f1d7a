"""Recorded traffic without text: a trace's times, lengths and shared prefixes, with made-up content."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvasir.core.errors import ConfigError
from kvasir.loadtest.plan import Prompt, Session, Turn, Workload
from kvasir.loadtest.prompt_maker import BlockMaker, PromptMaker
from kvasir.workload.traces.read import ReadOptions, TraceFormat, read_trace
from kvasir.workload.traces.trace import Trace, TraceRequest

_OWN_KEY = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePlay:
    """How a trace is played.

    ``speed``: 2 plays it in half the time.  ``max_tokens``: longer requests are left out.  ``follows_sessions``:
    requests of one session wait for each other and for the recorded pause, else every request has its recorded time.
    """

    path: Path
    trace_format: TraceFormat | None = None
    hash_block_size: int | None = None
    speed: float = 1.0
    max_tokens: int | None = None
    follows_sessions: bool = False


def traffic(play: TracePlay, maker: PromptMaker, num_requests: int | None, seed: int) -> Workload:
    """The first ``num_requests`` that fit (None: all).  Raises ``TraceError``, ``ConfigError``."""
    options = ReadOptions(seed=seed)
    if play.hash_block_size is not None:
        options = replace(options, hash_block_size=play.hash_block_size)
    trace = read_trace(play.path, options, play.trace_format).faster(play.speed)
    if play.hash_block_size not in (None, trace.hash_block_size):
        raise ConfigError(f"{play.path.name} says itself that its blocks have {trace.hash_block_size} tokens.")
    longest = play.max_tokens
    fitting = trace.where(lambda r: longest is None or r.num_prompt_tokens + r.num_output_tokens <= longest)
    if not fitting.requests:
        raise ConfigError(
            f"None of the {len(trace):,} requests of {play.path.name} fits the server's context of {longest:,} tokens."
        )
    chosen = fitting if num_requests is None else fitting.head(num_requests)
    sessions = _follow(chosen) if play.follows_sessions else [[request] for request in chosen.requests]
    return Workload(
        name="trace",
        description={
            "file": play.path.name,
            "speed": play.speed,
            "hash_block_size": chosen.hash_block_size,
            "prompts": maker.kind.value,
            "follows_sessions": play.follows_sessions,
        },
        sessions=_sessions(sessions, _PromptsOfTrace(chosen, maker)),
        num_sessions=len(sessions),
        num_left_out=len(trace) - len(fitting),
        has_times=chosen.has_times,
    )


class _PromptsOfTrace:
    """Prompts whose blocks are equal where the trace's ids are."""

    def __init__(self, trace: Trace, maker: PromptMaker) -> None:
        self._block_size = trace.hash_block_size
        self._maker = maker
        self._blocks = BlockMaker(maker)

    def of(self, number: int, request: TraceRequest) -> Prompt:
        parts: list[Prompt] = []
        num_left = request.num_prompt_tokens
        for hash_id in request.hash_ids:
            length = min(self._block_size, num_left)
            parts.append(self._blocks.block(hash_id, length))
            num_left -= length
        if num_left > 0:  # beyond the ids, nothing is shared
            parts.append(self._maker.make(num_left, _OWN_KEY + number, has_overhead=False))
        return self._maker.join(parts)


def _follow(trace: Trace) -> list[list[TraceRequest]]:
    """Requests of a session together, sessions in order of their first; those without one are alone."""
    by_session: dict[str, list[TraceRequest]] = {}
    for index, request in enumerate(trace.requests):
        by_session.setdefault(request.session_id or f"\0{index}", []).append(request)
    return list(by_session.values())


def _sessions(groups: Sequence[Sequence[TraceRequest]], prompts: _PromptsOfTrace) -> Iterator[Session]:
    number = 0
    for requests in groups:
        turns = []
        for index, request in enumerate(requests):
            turns.append(
                Turn(
                    prompt=prompts.of(number, request),
                    num_prompt_tokens=request.num_prompt_tokens,
                    num_output_tokens=request.num_output_tokens,
                    think_s=request.think_s if index else 0.0,
                )
            )
            number += 1
        yield Session(turns=tuple(turns), arrival_s=requests[0].arrival_s)
