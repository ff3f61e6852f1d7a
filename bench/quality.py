"""What number formats of the cache and the weights cost on the embedded model, and whether planted damage is seen."""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvasir.claims.result_file import Better, ResultWriter
from kvasir.cli.progress import progress_bars
from kvasir.lab.fault import Fault, LostTail, NarrowWindow, NoisyKV, SilentHead
from kvasir.lab.measure import Size
from kvasir.lab.opening import LabPlan
from kvasir.lab.page import quality_page
from kvasir.lab.report import QualityRun
from kvasir.lab.session import QualityPlan, run_quality
from kvasir.lab.setting import Setting
from kvasir.lab.texts import DATA_VARIABLE

RESULTS = Path(__file__).parent / "results"
SIXTEEN_BITS = {"kv_cache_dtype": "bf16"}
FORMATS = tuple(Setting(name=f"{dtype} KV", flags={"kv_cache_dtype": dtype}) for dtype in ("fp32", "fp16"))


@dataclass(frozen=True)
class Planted:
    """Damage, and the measure and metric that are meant to see it."""

    fault: Fault
    measure: str
    metric: str


# On repeated random tokens KV head 2 of layer 18 is the embedded model's sharpest induction head.
DAMAGE = {
    "KV noise of 1 %": Planted(NoisyKV(relative_error=0.01), "kl", "mean"),
    "one retrieval head silent": Planted(SilentHead(layer=18, kv_head=2), "copy", "gap"),
    "last block lost in decoding": Planted(LostTail(), "kl", "decoded"),
    "window of 128 on all heads": Planted(NarrowWindow(window=128), "passkey", "answer_loss"),
}


def served_plan(size: Size) -> QualityPlan:
    """KV in fp32 and fp16 against bf16 as the default serves them, with int8 weights: every measure."""
    return QualityPlan(lab=LabPlan(settings=FORMATS, size=size))


def formats_plan(size: Size) -> QualityPlan:
    """The same with fp32 weights, where no activation is rounded: what is left is the cache's alone."""
    lab = LabPlan(settings=FORMATS, shared={"weight_dtype": "fp32"}, size=size)
    return QualityPlan(lab=lab, measures=("kl", "perplexity", "copy"))


def weights_plan(size: Size) -> QualityPlan:
    """int8 and bf16 weights against fp32 weights, all with KV in fp32, where every difference is the weights'."""
    settings = tuple(
        Setting(name=f"{dtype} weights", flags={"kv_cache_dtype": "fp32", "weight_dtype": dtype})
        for dtype in ("int8", "bf16")
    )
    reference = {"kv_cache_dtype": "fp32", "weight_dtype": "fp32"}
    lab = LabPlan(settings=settings, reference=reference, size=size)
    return QualityPlan(lab=lab, measures=("kl", "perplexity", "passkey"))


def damage_plan(size: Size) -> QualityPlan:
    """Damage on purpose, on top of the 16-bit cache; with fp32 weights, so that nothing hides it."""
    settings = tuple(Setting(name=name, flags=SIXTEEN_BITS, fault=planted.fault) for name, planted in DAMAGE.items())
    lab = LabPlan(settings=settings, shared={"weight_dtype": "fp32"}, size=size)
    return QualityPlan(lab=lab, measures=("kl", "copy", "passkey", "degeneration"))


def write_damage(run: QualityRun, path: Path, command: str) -> None:
    """The whole run, and one claim a fault: its own measure flags it (1) or not (0)."""
    writer = ResultWriter(path=path, command=command, measurements=run.measurements())
    for name, planted in DAMAGE.items():
        is_seen = any(
            (result.name, metric.key) == (planted.measure, planted.metric) for result, metric in run.flagged(name)
        )
        title = next(result.title for result in run.results if result.name == planted.measure)
        writer.claim(
            f"planted damage, {name}: seen by {title} ({planted.metric})",
            float(is_seen),
            "of 1",
            better=Better.HIGHER,
            target=1.0,
        )
    print(f"written: {writer.write()}")


def write_run(run: QualityRun, path: Path, command: str) -> None:
    print(f"written: {run.write(path, command)}")


@dataclass(frozen=True)
class Part:
    plan: Callable[[Size], QualityPlan]
    write: Callable[[QualityRun, Path, str], None]
    size: Size = Size.FULL


PARTS = {
    "kv": Part(served_plan, write_run),
    "kv-fp32-weights": Part(formats_plan, write_run),
    "weights": Part(weights_plan, write_run),
    "damage": Part(damage_plan, write_damage, Size.QUICK),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"which of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a look within minutes; writes into the current folder")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    prefix = f"{DATA_VARIABLE}=<folder with texts> " if os.environ.get(DATA_VARIABLE) else ""
    for name in arguments.parts or PARTS:
        part = PARTS[name]
        size = Size.QUICK if arguments.quick else part.size
        with progress_bars() as progress:
            run = run_quality(part.plan(size), progress)
        folder = Path.cwd() if arguments.quick else RESULTS
        path = folder / f"quality-{name}.json"
        part.write(run, path, f"{prefix}python bench/quality.py {name}")
        if arguments.quick:
            quality_page(run).write(path.with_suffix(".html"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
