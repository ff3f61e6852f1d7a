"""What smaller KV buys on our own engine: decode, first token of a long prompt, a long chat, sequences in 1 GiB.

Settings are engines around the same weights, opened one after another within each run, so a machine that changes its
pace changes it for all: 16-bit FULL is the yardstick, then 8 bits, then the head profile on 8 bits.
"""

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import engines
from kvasir.claims.result_file import Better, ResultWriter
from kvasir.core.progress import no_progress
from kvasir.engine.assembly import LoadedModel, build, load_model
from kvasir.engine.engine import Engine
from kvasir.engine.flags import make_engine_config
from kvasir.engine.memory import available_memory
from kvasir.models.config import load_config
from kvasir.models.resolve import resolve_model
from kvasir.text.tokenizer import Tokenizer
from kvasir.workload.chat_turns import ChatShape, play_chat
from kvasir.workload.driver import play

SIXTEEN, EIGHT, PROFILE = "bf16", "int8", "int8 with head profile"
SETTINGS: Mapping[str, Mapping[str, object]] = {
    SIXTEEN: {"kv_cache_dtype": "bf16"},
    EIGHT: {"kv_cache_dtype": "int8"},
    PROFILE: {"head_profile": "default"},
}
POOL = "3GiB"
NUM_STREAMS, DECODED = 8, 64
DECODE_CONTEXTS = (4096, 7500)
LONG_PROMPT = 7500
CHAT_POOL, CHAT_PROMPT, CHAT_OUTPUT, CHAT_SEATS = "1GiB", 6900, 600, 40
NUM_CHATS = {SIXTEEN: 10, EIGHT: 18, PROFILE: 52}
"""Enough that some must wait under each setting.  A prompt takes 14 steps, so 42 chats can be between their first and
their last token at most."""


@dataclass(frozen=True)
class Opened:
    """Makes engines around one loaded model."""

    loaded: LoadedModel
    arguments: Any

    @contextmanager
    def engine(self, setting: str, **flags: object) -> Iterator[Engine]:
        config = make_engine_config(
            model=self.arguments.model,
            weight_dtype=self.arguments.weight_dtype,
            **{**SETTINGS[setting], **flags},  # type: ignore[arg-type]
        )
        engine = Engine(build(self.loaded, config, available_memory()))
        try:
            engines.warm_up(engine)
            yield engine
        finally:
            engine.close()


def decode_rate(opened: Opened, setting: str, run: int, context: int) -> float:
    """Prompts are computed one after another first, so that all streams decode from their cached prefix together."""
    with opened.engine(setting, kv_cache_memory=POOL, max_num_seqs=NUM_STREAMS) as engine:
        seeds = [1_000 * (run + 1) + i for i in range(NUM_STREAMS)]
        for seed in seeds:
            play(engine, [engines.request(f"fill-{seed}", context, 1, seed)])
        return engines.decode_tokens_per_s(
            play(engine, [engines.request(f"d{seed}", context, DECODED, seed) for seed in seeds])
        )


def first_token_s(opened: Opened, setting: str, run: int) -> float:
    with opened.engine(setting, kv_cache_memory=POOL) as engine:
        return play(engine, [engines.request("long", LONG_PROMPT, 1, seed=run + 1)]).ttft_s("long")


def chat_growth(opened: Opened, setting: str, run: int) -> float:
    """First-token time of turn 15 over that of turn 2, everything before the new turn being cached."""
    tokenizer = Tokenizer.from_folder(opened.loaded.folder.path)
    with opened.engine(setting, kv_cache_memory=POOL) as engine:
        turns = play_chat(engine, tokenizer, ChatShape(seed=run))
        return turns[14].ttft_s / turns[1].ttft_s


def most_chats_at_once(opened: Opened, setting: str, _run: int) -> float:
    """Chats of 7,500 tokens, all asked for at once with 1 GiB of KV: the most that got a token in one step.
    Who waits, or was preempted, gets none, so the whole KV of all those counted is held."""
    with opened.engine(setting, kv_cache_memory=CHAT_POOL, max_num_seqs=CHAT_SEATS) as engine:
        num = NUM_CHATS[setting]
        load = play(engine, [engines.request(f"c{i}", CHAT_PROMPT, CHAT_OUTPUT, seed=i + 1) for i in range(num)])
        together = Counter(time_s for times in load.token_times_s.values() for time_s in times)
        print(f"{setting}: {num} chats in {load.duration_s:.0f} s, {engine.stats().num_preemptions} preemptions")
        return float(max(together.values()))


MEASURES: Mapping[str, tuple[Callable[[Opened, str, int], float], tuple[str, ...]]] = {
    "chats_at_once_in_1GiB": (most_chats_at_once, tuple(SETTINGS)),
    **{
        f"decode_{NUM_STREAMS}x{context}_tokens_per_s": (
            lambda opened, setting, run, context=context: decode_rate(opened, setting, run, context),
            tuple(SETTINGS),
        )
        for context in DECODE_CONTEXTS
    },
    f"ttft_{LONG_PROMPT}_s": (first_token_s, tuple(SETTINGS)),
    "chat_turn_15_over_2": (chat_growth, tuple(SETTINGS)),
}
RUNS_OF = {"chats_at_once_in_1GiB": 1}
"""Not a timing: once is enough."""


def measure(opened: Opened, runs: int, names: list[str]) -> dict[str, dict[str, list[float]]]:
    measured: dict[str, dict[str, list[float]]] = {}
    for name in names:
        call, settings = MEASURES[name]
        measured[name] = {setting: [] for setting in settings}
        for run in range(RUNS_OF.get(name, runs)):
            for setting in settings:
                measured[name][setting].append(call(opened, setting, run))
            print(f"{name}, run {run + 1}: { {s: round(v[-1], 4) for s, v in measured[name].items()} }", flush=True)
    return measured


def ratio(measured: Mapping[str, Mapping[str, list[float]]], name: str, ours: str, other: str) -> float:
    """Median over runs of the ratio within each run."""
    pairs = zip(measured[name][ours], measured[name][other], strict=True)
    return statistics.median(mine / theirs for mine, theirs in pairs)


def claim_all(writer: ResultWriter, measured: Mapping[str, Mapping[str, list[float]]]) -> None:
    def claim(name: str, value: float, unit: str, better: Better, target: float | None) -> None:
        writer.claim(name, value, unit, better=better, target=target)

    short, long = (f"decode_{NUM_STREAMS}x{context}_tokens_per_s" for context in DECODE_CONTEXTS)
    ttft, chats, growth = f"ttft_{LONG_PROMPT}_s", "chats_at_once_in_1GiB", "chat_turn_15_over_2"
    claim(
        "decode at 8 x 4,096, int8 KV over 16-bit", ratio(measured, short, EIGHT, SIXTEEN), "times", Better.HIGHER, 1.25
    )
    claim(
        "decode at 8 x 7,500, head profile over 16-bit FULL",
        ratio(measured, long, PROFILE, SIXTEEN),
        "times",
        Better.HIGHER,
        2.5,
    )
    claim(
        "first token at 7,500, head profile over 16-bit FULL",
        ratio(measured, ttft, PROFILE, SIXTEEN),
        "of 1",
        Better.LOWER,
        0.6,
    )
    claim("the same over int8 FULL", ratio(measured, ttft, PROFILE, EIGHT), "of 1", Better.LOWER, None)
    for setting, target in ((PROFILE, 1.3), (EIGHT, 1.6), (SIXTEEN, 1.6)):
        value = statistics.median(measured[growth][setting])
        claim(f"chat, first token of turn 15 over turn 2, {setting}", value, "times", Better.LOWER, target)
    claim(
        "7,500-token chats at once in 1 GiB of KV, head profile over 16-bit FULL",
        ratio(measured, chats, PROFILE, SIXTEEN),
        "times",
        Better.HIGHER,
        5.0,
    )
    claim("the same, int8 FULL over 16-bit FULL", ratio(measured, chats, EIGHT, SIXTEEN), "times", Better.HIGHER, None)


def main() -> int:
    parser = engines.parser(__doc__, "kv_savings.json")
    parser.add_argument("--only", choices=list(MEASURES), action="append", help="look at one; writes nothing")
    arguments = parser.parse_args()
    ceiling = engines.show_ceiling()
    config = make_engine_config(model=arguments.model, weight_dtype=arguments.weight_dtype)
    folder = resolve_model(arguments.model, no_progress)
    loaded = load_model(folder, load_config(folder.path), config.weight_dtype, no_progress)
    opened = Opened(loaded, arguments)
    measured = measure(opened, arguments.runs, arguments.only or list(MEASURES))
    if arguments.only:
        return 0
    writer = ResultWriter(path=arguments.output, runs=arguments.runs)
    writer.measurements = {"ceiling": ceiling.as_json(), "settings": dict(SETTINGS), **measured}
    claim_all(writer, measured)
    for made in writer.claims:
        print(f"{made.name}: {made.value:.3f} {made.unit}")
    print(f"written: {writer.write()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
