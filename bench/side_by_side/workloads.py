"""The workloads: what is asked, in which order, and which figures are read off the answers."""

import asyncio
import math
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from kvasir.models.resolve import resolve_model
from kvasir.text.tokenizer import Tokenizer
from kvasir.workload.prompts import make_text
from side_by_side.wire import Answer

Asks = Callable[[list[int], int], Awaitable[Answer]]
"""Prompt and number of output tokens to the answer; a worker's ``ask``."""


@dataclass(kw_only=True)
class Outcome:
    """``figures`` by name, times in seconds; ``tokens``: the first outputs, to compare what programs say."""

    figures: dict[str, float | list[float]]
    tokens: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``num_parallel`` and ``context_tokens`` are known to who starts the programs.  ``rounds`` caps the repetitions
    of what is only reported."""

    name: str
    says: str
    play: Callable[[Asks, int], Awaitable[Outcome]]
    num_parallel: int
    context_tokens: int
    has_prefix_cache: bool = True
    rounds: int | None = None


TOKENS_A_SENTENCE = 10
"""At least; they have about 15."""


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    """The first ``num_tokens`` tokens of a text made from ``seed``: ordinary English, so that the answers are too."""
    return _tokenizer().encode(make_text(1 + num_tokens // TOKENS_A_SENTENCE, seed))[:num_tokens]


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve_model("demo").path)


async def warm_up(ask: Asks) -> None:
    """Every shape once: a short prompt, one longer than a chunk, a few together."""
    await ask(prompt_of(64, 1), 8)
    await ask(prompt_of(700, 2), 8)
    await asyncio.gather(*(ask(prompt_of(100, 3 + i), 8) for i in range(4)))


async def _one_stream(ask: Asks, seed: int) -> Outcome:
    answers = [await ask(prompt_of(128, seed + i), 128) for i in range(3)]
    return Outcome(
        figures={
            "ttft_s": statistics.median(answer.ttft_s for answer in answers),
            "tpot_s": statistics.median(answer.tpot_s for answer in answers),
        },
        tokens=[answer.token_ids for answer in answers],
    )


def _long_prompt(num_prompt: int) -> Callable[[Asks, int], Awaitable[Outcome]]:
    async def play(ask: Asks, seed: int) -> Outcome:
        answer = await ask(prompt_of(num_prompt, seed), 64)
        figures: dict[str, float | list[float]] = {
            "ttft_s": answer.ttft_s,
            "tpot_s": answer.tpot_s,
            "prefill_tokens_per_s": num_prompt / answer.ttft_s,
        }
        return Outcome(figures=figures, tokens=[answer.token_ids])

    return play


async def _together(ask: Asks, seed: int) -> Outcome:
    started_s = time.monotonic()
    answers = await asyncio.gather(*(ask(prompt_of(512, seed + i), 128) for i in range(16)))
    return Outcome(
        figures=_load_figures(answers, time.monotonic() - started_s), tokens=[answer.token_ids for answer in answers]
    )


def _load_figures(answers: Sequence[Answer], wall_s: float) -> dict[str, float | list[float]]:
    ttfts_s = sorted(answer.ttft_s for answer in answers)
    return {
        "output_tokens_per_s": sum(len(answer.times_s) for answer in answers) / wall_s,
        "ttft_p50_s": statistics.median(ttfts_s),
        "ttft_max_s": ttfts_s[-1],
        "tpot_p50_s": statistics.median(answer.tpot_s for answer in answers),
        "wall_s": wall_s,
    }


async def _shared_prefix(ask: Asks, seed: int) -> Outcome:
    prefix = prompt_of(2000, seed)
    answers = [await ask(prefix + prompt_of(64, seed + 1 + i), 16) for i in range(16)]
    ttfts_s = [answer.ttft_s for answer in answers]
    return Outcome(
        figures={"ttft_first_s": ttfts_s[0], "ttft_later_s": statistics.mean(ttfts_s[1:]), "ttfts_s": ttfts_s},
        tokens=[answer.token_ids for answer in answers],
    )


async def _chat(ask: Asks, seed: int) -> Outcome:
    """Each turn: all before it, with the program's own replies, and 100 new tokens."""
    history: list[int] = []
    answers: list[Answer] = []
    for turn in range(15):
        history += prompt_of(100, seed + turn)
        answers.append(await ask(list(history), 64))
        history += answers[-1].token_ids
    ttfts_s = [answer.ttft_s for answer in answers]
    return Outcome(
        figures={
            "ttft_turn_2_s": ttfts_s[1],
            "ttft_turn_15_s": ttfts_s[14],
            "ttft_mean_s": statistics.mean(ttfts_s),
            "tpot_p50_s": statistics.median(answer.tpot_s for answer in answers),
            "ttfts_s": ttfts_s,
        },
        tokens=[answers[0].token_ids],
    )


def mixed_jobs() -> list[tuple[int, int]]:
    """32 pairs of prompt and output lengths, the same in every round."""
    rng = random.Random(0)
    return [(round(math.exp(rng.uniform(math.log(32), math.log(4096)))), rng.randint(16, 256)) for _ in range(32)]


async def _mixed(ask: Asks, seed: int) -> Outcome:
    gate = asyncio.Semaphore(16)

    async def one(number: int, num_prompt: int, num_output: int) -> Answer:
        async with gate:
            return await ask(prompt_of(num_prompt, seed + number), num_output)

    started_s = time.monotonic()
    answers = await asyncio.gather(*(one(i, *job) for i, job in enumerate(mixed_jobs())))
    return Outcome(figures=_load_figures(answers, time.monotonic() - started_s))


async def _long_decodes(ask: Asks, seed: int) -> Outcome:
    """Eight long prompts at once; then the same again, now cached, so that all eight decode together."""
    prompts = [prompt_of(4096, seed + i) for i in range(8)]
    started_s = time.monotonic()
    first = await asyncio.gather(*(ask(prompt, 64) for prompt in prompts))
    figures = _load_figures(first, time.monotonic() - started_s)
    again = await asyncio.gather(*(ask(prompt, 64) for prompt in prompts))
    figures["decode_tokens_per_s"] = _rate_while_all_decode(again)
    return Outcome(figures=figures, tokens=[answer.token_ids for answer in first])


def _rate_while_all_decode(answers: Sequence[Answer]) -> float:
    """Tokens a second from the last first token to the first last one."""
    start_s = max(answer.times_s[0] for answer in answers)
    end_s = min(answer.times_s[-1] for answer in answers)
    return sum(start_s < time_s <= end_s for answer in answers for time_s in answer.times_s) / (end_s - start_s)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(name="W1", says="one stream, 128 + 128 tokens", play=_one_stream, num_parallel=4, context_tokens=1024),
        Workload(
            name="W2-4096", says="prompt of 4,096 + 64", play=_long_prompt(4096), num_parallel=4, context_tokens=4352
        ),
        Workload(
            name="W2-7500", says="prompt of 7,500 + 64", play=_long_prompt(7500), num_parallel=4, context_tokens=7680
        ),
        Workload(name="W3", says="16 x (512 + 128) at once", play=_together, num_parallel=16, context_tokens=768),
        Workload(
            name="W4",
            says="16 x (2,000 shared + 64, 16 out), one after another",
            play=_shared_prefix,
            num_parallel=4,
            context_tokens=2304,
        ),
        Workload(
            name="W4-off",
            says="W4 without prefix caching",
            play=_shared_prefix,
            num_parallel=4,
            context_tokens=2304,
            has_prefix_cache=False,
            rounds=1,
        ),
        Workload(
            name="W5", says="a chat of 15 turns, 100 in and 64 out", play=_chat, num_parallel=4, context_tokens=2560
        ),
        Workload(
            name="W5-off",
            says="W5 without prefix caching",
            play=_chat,
            num_parallel=4,
            context_tokens=2560,
            has_prefix_cache=False,
            rounds=1,
        ),
        Workload(
            name="W6",
            says="32 mixed requests (32..4,096 in, 16..256 out), 16 at a time",
            play=_mixed,
            num_parallel=16,
            context_tokens=4352,
        ),
        Workload(
            name="W7",
            says="8 x (4,096 + 64) at once, then again from the cache",
            play=_long_decodes,
            num_parallel=8,
            context_tokens=4352,
        ),
    )
}
