"""The result file and its picture, from the recorded rounds."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvasir.claims.ceiling import Ceiling
from kvasir.claims.result_file import Better, ResultWriter
from side_by_side import records
from side_by_side.contenders import contenders, default_kv_bits
from side_by_side.figures import Ratio, agreement, median_of, ratio_to_best, rounds_of, scalar
from side_by_side.picture import draw
from side_by_side.places import ROOT
from side_by_side.records import Failure, Record
from side_by_side.targets import OWN_TURN_TARGET, START_TARGET_S, TARGETS, Target
from side_by_side.workloads import WORKLOADS

REFERENCE = "transformers float32"
"""Whose greedy tokens the others' are compared with: the same weights, nothing quantised any further."""


def write_summary(path: Path, output: Path, ceiling: Ceiling) -> Path:
    """Read the records at ``path``; write ``output`` and, beside it, the picture of the same name."""
    done, failures = records.read(path)
    names = [name for name in contenders() if any(record.contender == name for record in done)]
    ours = {contenders()[name].kv_bits: name for name in names if contenders()[name].is_kvasir}
    peers = [name for name in names if not contenders()[name].is_kvasir]
    writer = ResultWriter(path=output, runs=_fewest_rounds(done, ours), command="make bench-peers")
    ratios = _claim_ratios(writer, done, ours, peers)
    _claim_own(writer, done, ours)
    writer.measurements = {
        "ceiling": ceiling.as_json(),
        "contenders": {name: _about(name, done, failures) for name in names},
        "workloads": {name: _workload(name, done, names) for name in WORKLOADS},
        "ratios": ratios,
    }
    draw(done, names, output.with_suffix(".png"))
    _print_claims(writer)
    return writer.write()


def _fewest_rounds(done: Sequence[Record], ours: dict[int, str]) -> int:
    """Of the workloads with a target."""
    counts = [
        len(rounds)
        for workload in {target.workload for target in TARGETS}
        for name in ours.values()
        if (rounds := rounds_of(done, workload, name))
    ]
    return min(counts, default=0)


def _claim_ratios(
    writer: ResultWriter, done: Sequence[Record], ours: dict[int, str], peers: Sequence[str]
) -> list[dict[str, object]]:
    noted: list[dict[str, object]] = []
    for target in TARGETS:
        name = ours.get(target.kv_bits or default_kv_bits(ours))
        ratio = None if name is None else _ratio(done, target, name, peers)
        if name is None or ratio is None:
            continue
        writer.claim(
            f"{target.says}, {contenders()[name].kv} KV, over the best peer's ({ratio.best_peer})",
            ratio.value,
            "of 1" if target.better is Better.LOWER else "times",
            better=target.better,
            target=target.ratio,
        )
        noted.append({"workload": target.workload, "figure": target.figure, "ours": name, **_as_json(ratio)})
    return noted


def _ratio(done: Sequence[Record], target: Target, ours: str, peers: Sequence[str]) -> Ratio | None:
    return ratio_to_best(
        done, workload=target.workload, figure=target.figure, ours=ours, peers=peers, better=target.better
    )


def _as_json(ratio: Ratio) -> dict[str, object]:
    return {"ratio": ratio.value, "best_peer": ratio.best_peer, "per_turn": ratio.per_turn}


def _claim_own(writer: ResultWriter, done: Sequence[Record], ours: dict[int, str]) -> None:
    """Targets that need no peer."""
    name = ours.get(default_kv_bits(ours))
    if name is None:
        return
    turns = [scalar(r, "ttft_turn_15_s") / scalar(r, "ttft_turn_2_s") for r in rounds_of(done, "W5", name)]
    if turns:
        writer.claim(
            f"chat of 15 turns: time to first token of turn 15 over turn 2, {contenders()[name].kv} KV",
            statistics.median(turns),
            "times",
            better=Better.LOWER,
            target=OWN_TURN_TARGET,
        )
    writer.claim(
        "start of the server to its first token, files cached",
        statistics.median(_starts(done, name)),
        "s",
        better=Better.LOWER,
        target=START_TARGET_S,
    )


def _starts(done: Sequence[Record], name: str) -> list[float]:
    """One entry a start: records of one start carry the same figure."""
    return list({record.start_to_first_token_s for record in done if record.contender == name})


def _without_root(value: Any) -> Any:
    """Paths as they are from the repository's root: where it lies on this machine is nobody's business."""
    if isinstance(value, dict):
        return {key: _without_root(inner) for key, inner in value.items()}
    return value.replace(f"{ROOT}/", "") if isinstance(value, str) else value


def _about(name: str, done: Sequence[Record], failures: Sequence[Failure]) -> dict[str, Any]:
    contender = contenders()[name]
    own = [record for record in done if record.contender == name]
    starts = _starts(done, name)
    return {
        "program": contender.program,
        "weights": contender.weights,
        "kv": contender.kv,
        "about": _without_root(own[-1].about),
        "commits": sorted({record.commit for record in own}),
        "start_to_first_token_s": {"median": statistics.median(starts), "all": starts},
        "leaves_out": contender.leaves_out,
        "measured_once": contender.once,
        "failures": [failure.error for failure in failures if failure.contender == name],
    }


def _workload(name: str, done: Sequence[Record], names: Sequence[str]) -> dict[str, Any]:
    reference = rounds_of(done, name, REFERENCE)
    rows: dict[str, Any] = {}
    for contender in names:
        rounds = rounds_of(done, name, contender)
        if not rounds:
            continue
        medians = {
            figure: median_of(rounds, figure)
            for figure, value in rounds[0].figures.items()
            if not isinstance(value, list)
        }
        rows[contender] = {
            **medians,
            "rounds": [record.figures for record in rounds],
            "peak_bytes": max(record.peak_bytes for record in rounds),
            "greedy_agreement": agreement(rounds, reference) if reference else None,
            "most_other_cores": max(record.other_cores for record in rounds),
        }
    return {"says": WORKLOADS[name].says, "contenders": rows}


def _print_claims(writer: ResultWriter) -> None:
    for claim in writer.claims:
        sign = "<=" if claim.better is Better.LOWER else ">="
        word = "met   " if claim.is_met else "MISSED"
        print(f"{word} {claim.value:8.3f} {sign} {claim.target:<5g} {claim.unit:5} {claim.name}")
