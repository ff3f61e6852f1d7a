"""``kvasir demo``: a growing chat with prefix caching off and on, and what paging and continuous batching buy."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvasir.cli.console import print_json, print_table
from kvasir.cli.demo_engines import CHAT_VARIANTS, LOAD_VARIANTS, DemoVariant, load_once
from kvasir.cli.engine_options import engine_options
from kvasir.cli.options import with_groups
from kvasir.cli.progress import progress_bars
from kvasir.core.errors import KvasirError
from kvasir.core.progress import Progress
from kvasir.engine.config import EngineConfig
from kvasir.workload.chat_turns import ChatShape, ChatTurn, play_chat
from kvasir.workload.mixed_load import MixedLoad, MixedLoadResult, play_mixed_load

if TYPE_CHECKING:
    from kvasir.claims.result_file import ResultWriter
    from kvasir.engine.assembly import LoadedModel

# The other settings are what the demo compares, so it sets them itself.
_OFFERED = frozenset({"model", "weight_dtype", "kv_cache_dtype", "block_size", "kernels", "threads"})
_MAX_SAMPLES = 150
"""Points a curve keeps in the result file; a picture needs no more."""


@with_groups(engine=engine_options(only=_OFFERED))
def run(
    engine: EngineConfig,
    turns: Annotated[int, typer.Option("--turns", min=2, help="Turns of the chat.")] = 15,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Requests of the mixed load.")] = 48,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder for demo.json and demo.png. [default: bench/results]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON.")] = False,
) -> None:
    from kvasir.claims.result_file import ResultWriter
    from kvasir.cli.demo_plot import draw_demo

    if find_spec("matplotlib") is None:
        raise KvasirError(
            "The demo draws a picture with matplotlib, which is not installed: pip install 'kvasir[plot]'."
        )
    folder = output or _default_folder()
    shape, load = ChatShape(num_turns=turns), MixedLoad(num_requests=requests)
    with progress_bars() as progress:
        player = _Player(load_once(engine, progress), engine, progress)
        chats = {name: player.chat(variant, shape) for name, variant in CHAT_VARIANTS.items()}
        loads = {name: player.load(variant, load) for name, variant in LOAD_VARIANTS.items()}
    writer = ResultWriter(path=folder / "demo.json", measurements=_measurements(shape, chats, load, loads))
    _claim(writer, chats, loads)
    picture = folder / "demo.png"
    draw_demo(writer.measurements, picture)
    writer.write()
    if as_json:
        print_json(writer.measurements)
        return
    _print_chats(chats)
    _print_loads(loads)
    print(f"written: {writer.path} and {picture}")


def _default_folder() -> Path:
    """The repository's result folder when run there, else one of our own where the person stands."""
    results = Path("bench") / "results"
    return results if results.is_dir() else Path("kvasir-demo")


@dataclass(frozen=True, slots=True)
class _Player:
    """Plays a workload on each engine that is compared, around one loaded model."""

    loaded: "LoadedModel"
    config: EngineConfig
    progress: Progress

    def chat(self, variant: DemoVariant, shape: ChatShape) -> list[ChatTurn]:
        from kvasir.text.tokenizer import Tokenizer

        report = self._stage(f"chat, {variant.label}")
        with variant.engine(self.loaded, self.config) as engine:
            tokenizer = Tokenizer.from_folder(engine.folder.path)
            return play_chat(engine, tokenizer, shape, lambda turn: report(turn.turn / shape.num_turns))

    def load(self, variant: DemoVariant, load: MixedLoad) -> MixedLoadResult:
        report = self._stage(f"mixed load, {variant.label}")
        with variant.engine(self.loaded, self.config) as engine:
            return play_mixed_load(engine, load, report)

    def _stage(self, stage: str) -> Callable[[float], None]:
        self.progress(stage, 0.0)
        return lambda fraction: self.progress(stage, fraction)


def _measurements(
    shape: ChatShape, chats: dict[str, list[ChatTurn]], load: MixedLoad, loads: dict[str, MixedLoadResult]
) -> dict[str, Any]:
    off, on = chats["off"], chats["on"]
    return {
        "chat": {
            "shape": asdict(shape),
            "same_replies": [turn.reply for turn in off] == [turn.reply for turn in on],
            **{name: [_without_reply(turn) for turn in turns] for name, turns in chats.items()},
        },
        "load": {
            "num_requests": load.num_requests,
            "mix": asdict(load.mix),
            "variants": {name: _summary(result) for name, result in loads.items()},
        },
    }


def _without_reply(turn: ChatTurn) -> dict[str, Any]:
    values = asdict(turn)
    del values["reply"]
    return values


def _summary(result: MixedLoadResult) -> dict[str, Any]:
    stride = -(-len(result.samples) // _MAX_SAMPLES)
    return {
        "duration_s": result.load.duration_s,
        "output_tokens_per_s": result.load.output_tokens_per_s,
        "num_output_tokens": result.load.num_output_tokens,
        "num_steps": result.load.num_steps,
        "num_preemptions": sum(event.num_preemptions for event in result.load.finished),
        "wasted_fraction": result.wasted_fraction,
        "max_running": result.max_running,
        "mean_running": result.mean_running,
        "samples": [
            {"time_s": s.time_s, "wasted_fraction": s.wasted_fraction, "num_running": s.num_running}
            for s in result.samples[::stride]
        ],
    }


def _claim(writer: "ResultWriter", chats: dict[str, list[ChatTurn]], loads: dict[str, MixedLoadResult]) -> None:
    from kvasir.claims.result_file import Better

    paged, static, contiguous = loads.values()
    last_off, last_on = chats["off"][-1], chats["on"][-1]
    writer.claim(
        f"chat turn {last_on.turn}: time to first token with prefix caching, as a share of without",
        last_on.ttft_s / last_off.ttft_s,
        "of 1",
        better=Better.LOWER,
    )
    writer.claim("paged KV: reserved but unused slots", paged.wasted_fraction, "of 1", better=Better.LOWER, target=0.05)
    writer.claim(
        "contiguous KV (the comparison): reserved but unused slots",
        contiguous.wasted_fraction,
        "of 1",
        better=Better.HIGHER,
        target=0.60,
    )
    for name, other in (("contiguous KV", contiguous), ("static batching", static)):
        writer.claim(
            f"mixed load: output tokens/s over {name}",
            paged.load.output_tokens_per_s / other.load.output_tokens_per_s,
            "times",
            better=Better.HIGHER,
        )
    writer.claim(
        "mixed load: most sequences at once over contiguous KV",
        paged.max_running / contiguous.max_running,
        "times",
        better=Better.HIGHER,
    )


def _print_chats(chats: dict[str, list[ChatTurn]]) -> None:
    rows = [
        [
            str(off.turn),
            f"{on.num_prompt_tokens:,}",
            f"{on.num_cached_tokens:,}",
            f"{1000 * off.ttft_s:,.0f} ms",
            f"{1000 * on.ttft_s:,.0f} ms",
            f"{off.ttft_s / on.ttft_s:.1f}",
        ]
        for off, on in zip(chats["off"], chats["on"], strict=True)
    ]
    columns = (">turn", ">prompt tokens", ">cached", ">first token, caching off", ">caching on", ">times sooner")
    print_table("A chat that grows", columns, rows)


def _print_loads(loads: dict[str, MixedLoadResult]) -> None:
    rows = [
        [
            name,
            f"{100 * result.wasted_fraction:.1f} %",
            str(result.max_running),
            f"{result.mean_running:.1f}",
            f"{result.load.output_tokens_per_s:.1f} tok/s",
            f"{result.load.duration_s:.1f} s",
        ]
        for name, result in loads.items()
    ]
    columns = ("mixed load", ">slots wasted", ">most at once", ">on average", ">output", ">all done after")
    print_table("The same requests and the same memory", columns, rows)
