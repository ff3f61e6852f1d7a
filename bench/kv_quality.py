"""What smaller KV costs on the embedded model: number formats, head profiles, and fewer keys kept or read."""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvasir.claims.result_file import Better, ResultWriter
from kvasir.cli.calibrate_model import calibrate_model
from kvasir.cli.progress import progress_bars
from kvasir.compression.calibrate import Recipe
from kvasir.core.progress import Progress
from kvasir.kv.format_pair import parse_pair
from kvasir.lab.measure import Size
from kvasir.lab.opening import LabPlan
from kvasir.lab.page import quality_page
from kvasir.lab.registry import MeasureRegistry
from kvasir.lab.report import QualityRun
from kvasir.lab.session import QualityPlan, run_quality
from kvasir.lab.setting import Setting
from kvasir.lab.texts import DATA_VARIABLE, text_files

BENCH = Path(__file__).parent
RESULTS = BENCH / "results"
CALIBRATION_TEXT = "wiki.valid.raw"
"""Under KVASIR_DATA; the lab measures on the other files there."""
PROFILES = Path("build/profiles")

INT8, MIXED, INT4, FP8, PROFILE = "int8", "k=int8,v=int4", "int4", "fp8", "head profile"
RECIPES: Mapping[str, tuple[float, tuple[str, ...]]] = {
    INT4: (0.30, ("int4", MIXED, "int8")),
    MIXED: (0.42, (MIXED, "int8")),
    FP8: (1.0, ("fp8",)),
}
"""Budget as a share of bf16, and the formats that `kvasir calibrate --window 0` chooses from."""

POLICIES: Mapping[str, Mapping[str, str]] = {
    "window of 512, all heads": {"kv_retention": "window:sinks=4,window=512"},
    "KeyDiff, half kept": {"kv_eviction": "keydiff:keep=0.5"},
    "16 blocks read": {"kv_sparse_read": "blocks=16"},
}


def calibrated(name: str, progress: Progress) -> str:
    """The path of a profile that keeps every head whole in one of the formats, made from the calibration text."""
    budget, formats = RECIPES[name]
    recipe = Recipe(budget=budget, window=0, formats=tuple(parse_pair(text) for text in formats))
    path = PROFILES / f"{name.replace(',', '-').replace('=', '')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    (folder,) = {file.parent for file in text_files(())}
    calibrate_model("demo", [folder / CALIBRATION_TEXT], recipe, path, None, progress)
    return str(path)


def formats_plan(progress: Progress) -> QualityPlan:
    """fp32 weights, where no activation is rounded and what is left is the cache's alone; contexts of up to 2,048."""
    settings = [
        Setting(name=INT8, flags={"kv_cache_dtype": "int8"}),
        *(
            Setting(name=f"{name}, calibrated", flags={"head_profile": calibrated(name, progress)})
            for name in (FP8, MIXED, INT4)
        ),
        Setting(name=f"{MIXED}, plain", flags={"kv_cache_dtype": MIXED}),
        Setting(name=f"{INT4}, plain", flags={"kv_cache_dtype": "int4"}),
    ]
    shared = {"weight_dtype": "fp32", "max_model_len": "2048"}
    return QualityPlan(lab=LabPlan(settings=tuple(settings), shared=shared, size=Size.FULL), measures=("kl",))


def policies_plan(_progress: Progress) -> QualityPlan:
    """Other ways to keep or read fewer keys, in 16 bits, at 1,024 tokens; a lot is drawn beside KeyDiff."""
    settings = tuple(Setting(name=name, flags={"kv_cache_dtype": "bf16", **flags}) for name, flags in POLICIES.items())
    return QualityPlan(lab=LabPlan(settings=settings, size=Size.QUICK), measures=("kl", "copy", "passkey"))


def profile_plan(_progress: Progress) -> QualityPlan:
    """The shipped profile as it is served, at the model's whole context; its controls come by themselves."""
    settings = (
        Setting(name=INT8, flags={"kv_cache_dtype": "int8"}),
        Setting(name=PROFILE, flags={"head_profile": "default"}),
    )
    lab = LabPlan(settings=settings, shared={"max_model_len": "8192"}, size=Size.FULL)
    registry = MeasureRegistry((BENCH / "long_keys.py",))
    return QualityPlan(lab=lab, measures=("copy", "passkey", "multi_key"), registry=registry)


class Claims:
    """Claims of one run, each a figure of a setting or its bytes as a share of the 16-bit cache's."""

    def __init__(self, run: QualityRun, writer: ResultWriter) -> None:
        self._run, self._writer = run, writer

    def bytes_share(self, setting: str, target: float) -> None:
        facts = self._run.facts
        share = facts[setting].bytes_per_token / facts[self._run.reference].bytes_per_token
        name = f"{setting}: KV bytes of {self._run.context:,} tokens over bf16's"
        self._writer.claim(name, share, "of 1", better=Better.LOWER, target=target)

    def figure(self, setting: str, measure: str, key: str, target: float | None = None) -> None:
        result = next(result for result in self._run.results if result.name == measure)
        metric = next(metric for metric in result.metrics if metric.key == key)
        found = result.settings[setting].overall[key]
        title = f"{setting}: {metric.label}"
        if measure not in ("kl", "copy"):
            title += f", {result.title}"
        self._writer.claim(title, found.value, metric.unit, better=metric.better, target=target)

    def worse_by_lot(self, measure: str, key: str) -> None:
        """1 when the same bytes for heads drawn by lot are worse than the profile beyond both intervals."""
        result = next(result for result in self._run.results if result.name == measure)
        chosen = result.settings[PROFILE].overall[key]
        by_lot = result.settings[f"{PROFILE}, heads by lot"].overall[key]
        is_worse = float(by_lot.lowest > chosen.highest)
        name = f"heads by lot at the same bytes are worse than the {PROFILE} beyond both intervals: {result.title}"
        self._writer.claim(name, is_worse, "of 1", better=Better.HIGHER, target=1.0)


def claim_formats(claims: Claims) -> None:
    mixed, int4 = f"{MIXED}, calibrated", f"{INT4}, calibrated"
    claims.bytes_share(INT8, 0.54)
    claims.figure(INT8, "kl", "mean", 0.002)
    claims.figure(INT8, "kl", "top1", 0.975)
    for setting, share, kl in ((mixed, 0.42, 0.006), (int4, 0.30, 0.015)):
        claims.bytes_share(setting, share)
        claims.figure(setting, "kl", "mean", kl)


def claim_policies(claims: Claims) -> None:
    for setting in POLICIES:
        claims.figure(setting, "copy", "gap")
        claims.figure(setting, "passkey", "found")


def claim_profile(claims: Claims) -> None:
    claims.bytes_share(PROFILE, 0.20)
    claims.figure(INT8, "copy", "gap", 0.02)
    claims.figure(PROFILE, "copy", "gap", 0.1)
    claims.figure(PROFILE, "passkey", "found_loss", 0.02)
    claims.figure(PROFILE, "multi_key", "found_loss", 0.02)
    claims.worse_by_lot("copy", "gap")
    claims.worse_by_lot("passkey", "answer_loss")


@dataclass(frozen=True)
class Part:
    plan: Callable[[Progress], QualityPlan]
    claim: Callable[[Claims], None]


PARTS = {
    "kv-formats": Part(formats_plan, claim_formats),
    "kv-policies": Part(policies_plan, claim_policies),
    "head-profile": Part(profile_plan, claim_profile),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"which of {', '.join(PARTS)} (default: all)")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    for name in arguments.parts or PARTS:
        part = PARTS[name]
        with progress_bars() as progress:
            run = run_quality(part.plan(progress), progress)
        path = RESULTS / f"quality-{name}.json"
        command = f"{DATA_VARIABLE}=<folder with texts> python bench/kv_quality.py {name}"
        writer = ResultWriter(path=path, command=command, measurements=run.measurements())
        part.claim(Claims(run, writer))
        for made in writer.claims:
            print(f"{made.name}: {made.value:.4g} {made.unit}")
        print(f"written: {writer.write()}")
        page = Path("build") / f"quality-{name}.html"
        page.parent.mkdir(exist_ok=True)
        quality_page(run).write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
