"""Many requests of mixed lengths at once: what memory they reserve and fill, how many run, how fast tokens come."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.workload.driver import LoadResult, SteppedEngine, play
from kvasir.workload.lengths import LengthMix
from kvasir.workload.prompts import make_token_ids


class SlotCounts(Protocol):
    @property
    def num_reserved(self) -> int: ...

    @property
    def num_filled(self) -> int: ...


class RunningCount(Protocol):
    @property
    def num_running(self) -> int: ...


class ObservedEngine(SteppedEngine, Protocol):
    """An engine that says what its memory is used for."""

    def slot_usage(self) -> SlotCounts: ...

    def stats(self) -> RunningCount: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLoad:
    """``num_requests`` that all arrive at once.  Prompts are random ids in [first_id, last_id]: nothing is shared."""

    num_requests: int = 48
    mix: LengthMix = field(default_factory=LengthMix)
    seed: int = 0
    first_id: int = 100
    last_id: int = 40_000

    def requests(self) -> list[Request]:
        return [
            Request(
                request_id=f"mixed-{i}",
                prompt_token_ids=make_token_ids(
                    num_prompt, self.seed * 100_000 + i, first_id=self.first_id, last_id=self.last_id
                ),
                sampling=SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True),
            )
            for i, (num_prompt, num_output) in enumerate(self.mix.draw(self.num_requests, self.seed))
        ]


@dataclass(frozen=True, slots=True)
class LoadSample:
    """After one step that took ``duration_s``: token slots reserved by running sequences, and those that hold one."""

    time_s: float
    duration_s: float
    num_reserved: int
    num_filled: int
    num_running: int

    @property
    def wasted_fraction(self) -> float:
        return 1.0 - self.num_filled / self.num_reserved if self.num_reserved else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLoadResult:
    load: LoadResult
    samples: tuple[LoadSample, ...]

    @property
    def wasted_fraction(self) -> float:
        """Share of reserved slots that held nothing, over slots and time."""
        reserved = sum(sample.num_reserved * sample.duration_s for sample in self.samples)
        filled = sum(sample.num_filled * sample.duration_s for sample in self.samples)
        return 1.0 - filled / reserved

    @property
    def max_running(self) -> int:
        return max(sample.num_running for sample in self.samples)

    @property
    def mean_running(self) -> float:
        total_s = sum(sample.duration_s for sample in self.samples)
        return sum(sample.num_running * sample.duration_s for sample in self.samples) / total_s


def play_mixed_load(
    engine: ObservedEngine, load: MixedLoad, on_done: Callable[[float], None] | None = None
) -> MixedLoadResult:
    """``on_done`` gets the share of requests that have ended, after every step."""
    requests = load.requests()
    samples: list[LoadSample] = []
    start = last = time.perf_counter()

    def observe(so_far: LoadResult) -> None:
        nonlocal last
        now = time.perf_counter()
        slots = engine.slot_usage()
        if slots.num_reserved:
            num_running = engine.stats().num_running
            samples.append(LoadSample(now - start, now - last, slots.num_reserved, slots.num_filled, num_running))
        last = now
        if on_done is not None:
            on_done(len(so_far.finished) / len(requests))

    result = play(engine, requests, on_step=observe)
    return MixedLoadResult(load=result, samples=tuple(samples))
