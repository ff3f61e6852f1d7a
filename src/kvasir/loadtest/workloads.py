"""Loads made from a seed: lone prompts of given lengths, prompts that share prefixes, chats that grow."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from kvasir.core.errors import ConfigError
from kvasir.loadtest.plan import Session, Turn, Workload, lone
from kvasir.loadtest.prompt_maker import PromptMaker
from kvasir.workload.lengths import LengthRange

_SYSTEM_KEY = 1 << 60
_PREFIX_KEY = 1 << 61


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of prompts and answers."""

    prompt: LengthRange
    output: LengthRange

    def draw(self, num_requests: int, seed: int) -> list[tuple[int, int]]:
        rng = random.Random(seed)
        return [(self.prompt.draw(rng), self.output.draw(rng)) for _ in range(num_requests)]

    def describe(self) -> dict[str, object]:
        return {"prompt_tokens": str(self.prompt), "output_tokens": str(self.output)}


def lone_prompts(lengths: Lengths, maker: PromptMaker, num_sessions: int) -> Workload:
    """Every prompt is its own conversation, and shares nothing with another."""

    def turns() -> Iterator[Turn]:
        for key, (num_prompt, num_output) in enumerate(lengths.draw(num_sessions, maker.seed)):
            yield Turn(prompt=maker.make(num_prompt, key), num_prompt_tokens=num_prompt, num_output_tokens=num_output)

    description = lengths.describe() | {"prompts": maker.kind.value}
    return Workload(name="random", description=description, sessions=lone(turns()), num_sessions=num_sessions)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """``num_prefixes`` texts of ``prefix_tokens``; every prompt begins with one of them, in turn."""

    prefix_tokens: int
    num_prefixes: int
    lengths: Lengths


def shared_prefixes(shape: SharedPrefixes, maker: PromptMaker, num_sessions: int) -> Workload:
    """``shape.lengths.prompt`` is what follows the prefix."""

    def turns() -> Iterator[Turn]:
        prefixes = [maker.make(shape.prefix_tokens, _PREFIX_KEY + i) for i in range(shape.num_prefixes)]
        for key, (num_prompt, num_output) in enumerate(shape.lengths.draw(num_sessions, maker.seed)):
            own = maker.make(num_prompt, key, has_overhead=False)
            yield Turn(
                prompt=maker.join([prefixes[key % shape.num_prefixes], own]),
                num_prompt_tokens=shape.prefix_tokens + num_prompt,
                num_output_tokens=num_output,
            )

    description = shape.lengths.describe() | {
        "prefix_tokens": shape.prefix_tokens,
        "num_prefixes": shape.num_prefixes,
        "prompts": maker.kind.value,
    }
    return Workload(name="shared-prefix", description=description, sessions=lone(turns()), num_sessions=num_sessions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chats:
    """``lengths.prompt`` is what the user says in a turn; all chats share one system prompt."""

    num_turns: int
    system_tokens: int
    think_s: float
    lengths: Lengths

    def __post_init__(self) -> None:
        if self.num_turns < 1 or self.system_tokens < 0 or self.think_s < 0:
            raise ConfigError(
                f"A chat needs at least 1 turn and no negative number, got {self.num_turns} turns, a system prompt of "
                f"{self.system_tokens} tokens and pauses of {self.think_s:g} s."
            )


def chats(shape: Chats, maker: PromptMaker, num_sessions: int) -> Workload:
    """Conversations whose turns carry all that was said before, the model's replies included."""

    def sessions() -> Iterator[Session]:
        system = maker.make(shape.system_tokens, _SYSTEM_KEY, has_overhead=False) if shape.system_tokens else ""
        opening = ({"role": "system", "content": str(system)},) if system else ()
        drawn = iter(shape.lengths.draw(num_sessions * shape.num_turns, maker.seed))
        for session in range(num_sessions):
            turns = []
            num_before = shape.system_tokens
            for index in range(shape.num_turns):
                num_prompt, num_output = next(drawn)
                turns.append(
                    Turn(
                        prompt=maker.make(num_prompt, session * shape.num_turns + index, has_overhead=index == 0),
                        num_prompt_tokens=num_before + num_prompt,
                        num_output_tokens=num_output,
                        think_s=shape.think_s if index else 0.0,
                    )
                )
                num_before += num_prompt + num_output
            yield Session(turns=tuple(turns), opening=opening, grows=True)

    description = shape.lengths.describe() | {
        "turns": shape.num_turns,
        "system_tokens": shape.system_tokens,
        "think_s": shape.think_s,
    }
    return Workload(name="chat", description=description, sessions=sessions(), num_sessions=num_sessions)
