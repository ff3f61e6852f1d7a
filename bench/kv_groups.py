"""What groups by head give back: chats held at once in the same bytes, time to first token, decode tokens/s."""

import argparse
import statistics
import sys
from collections.abc import Callable

import engines
from kvasir.claims.result_file import Better, ResultWriter
from kvasir.core.events import TokensEvent
from kvasir.core.progress import no_progress
from kvasir.engine.assembly import LoadedModel, build, load_model
from kvasir.engine.engine import Engine
from kvasir.engine.flags import make_engine_config
from kvasir.engine.memory import MemoryLimits, available_memory
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.head_group import HeadGroup, all_heads
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.retention import windowed
from kvasir.models.config import load_config
from kvasir.models.resolve import resolve_model
from kvasir.models.weight_dtype import WeightDtype
from kvasir.workload.driver import play

PROMPT = 7500
CHAT_OUTPUT = 240
"""Long enough that the first chat still answers when the last one that fits has begun to."""
NUM_DECODES, DECODE_OUTPUT = 8, 48
WHOLE, BY_HEAD = "16 bit, all heads full", "int8, retrieval heads full, the others 4 + 1024"
RETRIEVAL_HEADS = {
    7: (2,),
    8: (0,),
    14: (1,),
    15: (2,),
    17: (1,),
    18: (2,),
    20: (1, 2),
    21: (1, 2),
    22: (1, 2),
    23: (0, 2),
    24: (0, 1, 2),
}
"""By layer, 17 KV heads of the embedded model: the highest induction and echo scores on repeated random tokens."""
TARGETS = {"concurrency": 5.0, "ttft": 0.6, "decode": 2.5}


def by_head(layout: KVLayout) -> KVLayout:
    heads = all_heads(layout.num_layers, layout.num_kv_heads)
    retrieval = {(layer, head) for layer, of_layer in RETRIEVAL_HEADS.items() for head in of_layer}
    full = HeadGroup(heads=tuple(sorted(retrieval)), k_dtype=KVDtype.INT8, v_dtype=KVDtype.INT8)
    window = HeadGroup(
        heads=tuple(head for head in heads if head not in retrieval),
        retention=windowed(sinks=4, window=1024),
        k_dtype=KVDtype.INT8,
        v_dtype=KVDtype.INT8,
    )
    geometry = KVGeometry(
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.groups[0].head_dim,
        sliding_windows=(None,) * layout.num_layers,
    )
    return KVLayout.from_geometry(
        geometry,
        block_size=layout.block_size,
        k_dtype=KVDtype.BF16,
        v_dtype=KVDtype.BF16,
        head_groups=(full, window),
    )


LAYOUTS: dict[str, Callable[[KVLayout], KVLayout] | None] = {WHOLE: None, BY_HEAD: by_head}


def open_engine(loaded: LoadedModel, limits: MemoryLimits, setting: str, **flags: object) -> Engine:
    config = make_engine_config(max_model_len=PROMPT + CHAT_OUTPUT, kv_cache_dtype="bf16", **flags)  # type: ignore[arg-type]
    return Engine(build(loaded, config, limits, alter_layout=LAYOUTS[setting]))


def most_at_once(engine: Engine, most: int) -> int:
    """The most chats that answer at the same time, none of them ever preempted, when more than fit arrive at once."""
    for i in range(most + 2):
        engine.add_request(engines.request(f"chat-{i}", PROMPT, CHAT_OUTPUT, seed=i))
    answering: set[str] = set()
    peak, is_over = 0, False
    while not is_over:
        for event in engine.step():
            if isinstance(event, TokensEvent):
                answering.add(event.request_id)
            else:
                is_over = True
        peak = max(peak, len(answering))
        is_over = is_over or peak > most or engine.stats().num_preemptions > 0
        print(f"\r{peak} chats answer at once", end="", flush=True)
    print()
    for i in range(most + 2):
        engine.abort(f"chat-{i}")
    while engine.has_work:
        engine.step()
    engine.audit()
    return peak


def time_to_first_token_s(engine: Engine, seed: int) -> float:
    engine.reset_prefix_cache()
    return play(engine, [engines.request("first", PROMPT, 1, seed=seed)]).ttft_s("first")


def decode_tokens_per_s(engine: Engine, seed: int) -> float:
    """While all answer: from the last one's first token to the first one's end."""
    engine.reset_prefix_cache()
    requests = [engines.request(f"r{i}", PROMPT, DECODE_OUTPUT, seed=seed + i) for i in range(NUM_DECODES)]
    load = play(engine, requests)
    begin_s = max(times[0] for times in load.token_times_s.values())
    end_s = min(times[-1] for times in load.token_times_s.values())
    num_tokens = sum(begin_s < time_s <= end_s for times in load.token_times_s.values() for time_s in times)
    return num_tokens / (end_s - begin_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--output", default=engines.RESULTS / "kv_groups.json")
    arguments = parser.parse_args()
    ceiling = engines.show_ceiling()
    limits = available_memory()
    folder = resolve_model("demo")
    loaded = load_model(folder, load_config(folder.path), WeightDtype.INT8, no_progress)
    writer = ResultWriter(path=arguments.output, runs=arguments.runs)
    measured = writer.measurements = {"ceiling": ceiling.as_json(), "prompt_tokens": PROMPT}

    chats = {}
    for setting in LAYOUTS:
        engine = open_engine(
            loaded, limits, setting, kv_cache_memory=arguments.memory, max_num_seqs=40, max_num_batched_tokens=2048
        )
        planned = engine.memory.num_sequences
        chats[setting] = most_at_once(engine, planned)
        measured[setting] = {
            "engine": engines.describe_engine(engine),
            "layout": [f"{spec.num_pairs} heads {spec.retention}" for spec in engine.layout.groups],
            "num_blocks": list(engine.num_blocks),
            "planned_chats": planned,
            "chats_at_once": chats[setting],
        }
        engine.close()
    opened = {
        setting: open_engine(loaded, limits, setting, kv_cache_memory="1536MiB", max_num_seqs=NUM_DECODES)
        for setting in LAYOUTS
    }
    ttft: dict[str, list[float]] = {setting: [] for setting in LAYOUTS}
    decode: dict[str, list[float]] = {setting: [] for setting in LAYOUTS}
    for run in range(arguments.runs):
        for setting, engine in opened.items():
            ttft[setting].append(time_to_first_token_s(engine, 1000 + run))
        for setting, engine in opened.items():
            decode[setting].append(decode_tokens_per_s(engine, 2000 + 100 * run))
        print({setting: (ttft[setting][-1], decode[setting][-1]) for setting in LAYOUTS}, flush=True)
    for setting in LAYOUTS:
        measured[setting] |= {"ttft_s": ttft[setting], "decode_tokens_per_s": decode[setting]}

    def ratio(values: dict[str, list[float]]) -> float:
        return statistics.median(new / old for new, old in zip(values[BY_HEAD], values[WHOLE], strict=True))

    what = f"{BY_HEAD}, against {WHOLE}"
    writer.claim(
        f"chats of {PROMPT:,} tokens at once in {arguments.memory} of KV, {what}",
        chats[BY_HEAD] / chats[WHOLE],
        "times",
        better=Better.HIGHER,
        target=TARGETS["concurrency"],
    )
    writer.claim(
        f"time to first token at {PROMPT:,} tokens, {what}",
        ratio(ttft),
        "of 1",
        better=Better.LOWER,
        target=TARGETS["ttft"],
    )
    writer.claim(
        f"decode tokens/s at {NUM_DECODES} x {PROMPT:,} tokens, {what}",
        ratio(decode),
        "times",
        better=Better.HIGHER,
        target=TARGETS["decode"],
    )
    print(f"written: {writer.write()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
