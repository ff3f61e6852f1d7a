"""Time per output token against measured vLLM rows: fitted on some GPUs or models, tested on the ones left out."""

import argparse
import csv
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from kvasir.claims.result_file import Better, ResultWriter
from kvasir.core.errors import ConfigError
from kvasir.hardware.cards import find_card
from kvasir.hardware.roofline import IDEAL, StepConstants
from kvasir.kv.format_spec import KVDtype
from kvasir.planner.engines import EngineName
from kvasir.planner.instance import plan_instance
from kvasir.planner.kv_groups import StoreFormat
from kvasir.planner.lengths import parse_lengths
from kvasir.planner.model_shape import ModelShape
from kvasir.planner.request import EngineSettings, Load, PlanRequest
from kvasir.planner.sources import find_model_card
from kvasir.planner.speed import SpeedModel
from kvasir.planner.weight_formats import WeightFormat, find_weight_format

RESULT = Path(__file__).parent / "results" / "tpot_rows.json"
CARDS = {"h100_sxm": "H100-SXM", "h200_sxm": "H200", "b200_sxm": "B200", "b300_sxm": "B300"}
FITTED = {"meta-llama/Llama-3.1-70B": "llama-3.1-70b", "Qwen/Qwen3-32B": "qwen3-32b"}
LEFT_OUT = {"nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b"}
MIXTURES = {"Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b", "MiniMaxAI/MiniMax-M2.5": "minimax-m2"}


@dataclass(frozen=True, slots=True)
class Row:
    """A measured row as the ideal seconds of its parts: memory, compute, prefill share; and how many layers talk."""

    model: str
    card: str
    measured_s: float
    memory_s: float
    compute_s: float
    prefill_s: float
    link_layers: int
    ttft_s: float
    fits: bool
    """Whether all sequences at their full length fit in the pool that the planner reckons for vLLM's defaults."""

    def predicted_s(self, constants: StepConstants) -> float:
        bound = max(self.memory_s / constants.bandwidth_efficiency, self.compute_s / constants.flops_efficiency)
        overhead = constants.step_overhead_s + constants.link_overhead_s * self.link_layers
        return bound + overhead + self.prefill_s / constants.flops_efficiency

    def error(self, constants: StepConstants) -> float:
        return abs(self.predicted_s(constants) / self.measured_s - 1)


def read_rows(path: Path, models: dict[str, str]) -> list[Row]:
    with path.open(newline="") as file:
        entries = [entry for entry in csv.DictReader(file) if _is_wanted(entry, models)]
    return [_row(entry, models[entry["model"]]) for entry in entries]


def _is_wanted(entry: dict[str, str], models: dict[str, str]) -> bool:
    is_vllm = entry["engine"] == "vllm" and entry["model"] in models and bool(entry["concurrency"])
    return is_vllm and "fp4" not in entry["precision"] and entry["pp"] == "1"


def _row(entry: dict[str, str], name: str) -> Row:
    shape = find_model_card(name)
    assert shape is not None
    weights = find_weight_format("fp8" if entry["precision"].startswith("fp8") else "bf16")
    form = StoreFormat(tensor_parallel=int(entry["tp"]))
    speed = SpeedModel.of(shape, weights, form, find_card(CARDS[entry["system"]]), IDEAL)
    batch, prompt, output = int(entry["concurrency"]), int(entry["isl"]), int(entry["osl"])
    work = speed.decode_work(batch, prompt + output // 2)
    return Row(
        model=entry["model"],
        card=CARDS[entry["system"]],
        measured_s=float(entry["tpot_ms"]) / 1000,
        memory_s=speed.roofline.memory_s(work.num_bytes),
        compute_s=speed.roofline.compute_s(work.num_flops),
        prefill_s=batch * speed.prefill_s(prompt) / output,
        link_layers=shape.num_layers if form.tensor_parallel > 1 else 0,
        ttft_s=float(entry["ttft_ms"]) / 1000,
        fits=_fits(entry, shape, weights),
    )


def _fits(entry: dict[str, str], shape: ModelShape, weights: WeightFormat) -> bool:
    length = int(entry["isl"]) + int(entry["osl"])
    lengths = parse_lengths(str(length))
    request = PlanRequest(
        shape=shape,
        weights=weights,
        k_dtype=KVDtype.BF16,
        v_dtype=KVDtype.BF16,
        load=Load(users=1, prompts=lengths, outputs=lengths),
        settings=EngineSettings(engine=EngineName.VLLM, version=entry["engine_version"], max_model_len=length),
    )
    try:
        pool = plan_instance(request, find_card(CARDS[entry["system"]]), int(entry["tp"])).pool
    except ConfigError:
        return False
    return pool.num_sequences(length) >= int(entry["concurrency"])


def fit(rows: Sequence[Row]) -> StepConstants:
    """The constants with the least mean error, by pattern search in their logarithms."""
    best = [math.log(value) for value in (0.8, 0.6, 3e-3, 20e-6)]
    best_error = _mean_error(rows, best)
    step = 0.4
    while step > 2e-3:
        improved = False
        for i in range(len(best)):
            for sign in (1, -1):
                trial = [value + sign * step * (i == j) for j, value in enumerate(best)]
                error = _mean_error(rows, trial)
                if error < best_error:
                    best, best_error, improved = trial, error, True
        if not improved:
            step /= 2
    return _constants(best)


def _constants(logs: Sequence[float]) -> StepConstants:
    bandwidth, flops, step_s, link_s = (math.exp(value) for value in logs)
    return StepConstants(
        bandwidth_efficiency=min(bandwidth, 1.0),
        flops_efficiency=min(flops, 1.0),
        step_overhead_s=step_s,
        link_overhead_s=link_s,
    )


def _mean_error(rows: Sequence[Row], logs: Sequence[float]) -> float:
    constants = _constants(logs)
    return mean(row.error(constants) for row in rows)


def summary(rows: Sequence[Row], constants: StepConstants) -> dict[str, float]:
    errors = sorted(row.error(constants) for row in rows)
    return {
        "rows": len(errors),
        "mean_error": mean(errors),
        "median_error": median(errors),
        "p90_error": errors[math.ceil(0.9 * len(errors)) - 1],
    }


def waiting(rows: Sequence[Row]) -> dict[str, int]:
    """How many rows let requests wait for their first token, by length of the wait in seconds."""
    return {"rows": len(rows)} | {f"ttft_above_{limit}_s": sum(r.ttft_s > limit for r in rows) for limit in (2, 5, 10)}


def as_json(constants: StepConstants) -> dict[str, float]:
    return {
        "bandwidth_efficiency": constants.bandwidth_efficiency,
        "flops_efficiency": constants.flops_efficiency,
        "step_overhead_ms": constants.step_overhead_s * 1e3,
        "link_overhead_us": constants.link_overhead_s * 1e6,
    }


def held_out(rows: Sequence[Row], key: Callable[[Row], str]) -> dict[str, dict[str, object]]:
    """For each value of ``key``: constants fitted without it, tested on it."""
    found: dict[str, dict[str, object]] = {}
    for name in sorted({key(row) for row in rows}):
        constants = fit([row for row in rows if key(row) != name])
        found[name] = {"constants": as_json(constants), **summary([row for row in rows if key(row) == name], constants)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, help="the table of measured rows [default: in the folder KVASIR_DATA]")
    path = parser.parse_args().rows or Path(os.environ["KVASIR_DATA"]) / "latency" / "silicon_agg.csv"
    rows = read_rows(path, FITTED)
    constants = fit(rows)
    by_card, by_model = held_out(rows, lambda row: row.card), held_out(rows, lambda row: row.model)
    left_out, mixtures = read_rows(path, LEFT_OUT), read_rows(path, MIXTURES)

    writer = ResultWriter(path=RESULT, command="python bench/tpot_rows.py")
    writer.measurements = {
        "fitted_on_all": {"constants": as_json(constants), **summary(rows, constants)},
        "no_losses": summary(rows, IDEAL),
        "held_out_gpu": by_card,
        "held_out_model": by_model,
        "left_out_llama_3.1_8b_fp8_h200": summary(left_out, constants),
        "with_left_out": summary(rows + left_out, constants),
        "capacity": {
            "predicted_to_fit": waiting([row for row in rows if row.fits]),
            "predicted_not_to_fit": waiting([row for row in rows if not row.fits]),
        },
        "mixtures_of_experts_not_fitted": {
            name: summary([row for row in mixtures if row.model == name], constants) for name in MIXTURES
        },
    }
    worst_card = max(float(str(entry["mean_error"])) for entry in by_card.values())
    worst_model = max(float(str(entry["mean_error"])) for entry in by_model.values())
    left = writer.measurements["left_out_llama_3.1_8b_fp8_h200"]["mean_error"]
    lower = Better.LOWER
    writer.claim("mean TPOT error on a GPU not fitted on, worst of 3", 100 * worst_card, "%", better=lower, target=12)
    writer.claim(
        "mean TPOT error on a model not fitted on, worst of 2", 100 * worst_model, "%", better=lower, target=17
    )
    writer.claim("mean TPOT error on the 21 left-out rows", 100 * left, "%", better=lower)
    surprised = writer.measurements["capacity"]["predicted_to_fit"]["ttft_above_5_s"]
    writer.claim("rows predicted to fit whose first token takes over 5 s", surprised, "rows", better=lower, target=0)
    for claim in writer.claims:
        print(f"{claim.name}: {claim.value:.3g} {claim.unit} (target {claim.target})")
    print("fitted on all:", as_json(constants))
    print(writer.write())


if __name__ == "__main__":
    main()
