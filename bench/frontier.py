"""Draws results/frontier.png from the committed quality reports: damage against KV bytes, one point a setting."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import engines
from kvasir.claims.result_file import ResultFile, read_result

PICTURE = engines.RESULTS / "frontier.png"
_SMALLEST = {"kl": 1e-5, "copy": 1e-3}
"""Less damage than this, or none, is drawn here: the axis is logarithmic."""
_CHOSEN, _CONTROL, _LINE = "#1f6fb2", "#8a8f98", "#d99a2b"


@dataclass(frozen=True)
class Point:
    name: str
    share: float
    damage: float
    high: float
    is_control: bool


def points(report: ResultFile, measure: str, metric: str) -> list[Point]:
    """Settings and controls of one report; empty where it has no such measure, or not against bf16."""
    found = report.measurements
    if found["reference"] != "16-bit":
        return []
    figures = found["measures"].get(measure, {}).get("settings", {})
    whole = found["settings"][found["reference"]]["bytes_per_token"]
    names = [name for name in found["order"] if name in figures and name not in (found["floor"], found["nudged"])]
    made = []
    for name in names:
        overall = figures[name]["overall"].get(metric)
        if name == found["reference"] or overall is None:
            continue
        share = found["settings"][name]["bytes_per_token"] / whole
        is_control = name.endswith((", by lot", ", heads by lot", ", one window"))
        made.append(Point(name, share, overall["value"], overall["high"] or overall["value"], is_control))
    return made


def frontier(found: Sequence[Point]) -> list[Point]:
    """Those that no other beats in bytes and damage, by bytes."""
    best: list[Point] = []
    for point in sorted(found, key=lambda point: (point.share, point.damage)):
        if not best or point.damage < best[-1].damage:
            best.append(point)
    return best


def panel(cell: Any, reports: Sequence[ResultFile], measure: str, metric: str, title: str) -> None:
    least = _SMALLEST[measure]
    found = [point for report in reports for point in points(report, measure, metric)]
    for point in found:
        colour, y = _CONTROL if point.is_control else _CHOSEN, max(point.damage, least)
        cell.plot([point.share] * 2, [y, max(point.high, least)], color=colour, linewidth=1, alpha=0.6)
        cell.plot(point.share, y, "x" if point.is_control else "o", color=colour)
        side = {"ha": "right", "va": "center", "fontsize": 7} if point.is_control else {"va": "bottom", "fontsize": 9}
        offset = (-7, 0) if point.is_control else (6, 0)
        cell.annotate(point.name, (point.share, y), offset, textcoords="offset points", color=colour, **side)
    line = frontier([point for point in found if not point.is_control])
    cell.step(
        [point.share for point in line],
        [max(point.damage, least) for point in line],
        where="post",
        color=_LINE,
        linewidth=1,
        zorder=0,
    )
    ticks = [0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0]
    cell.set(
        xscale="log", yscale="log", title=title, xlabel="KV bytes per token, share of bf16", ylabel="nats per token"
    )
    cell.grid(alpha=0.25)
    cell.margins(x=0.45, y=0.12)
    low, high = cell.get_xlim()
    shown = [tick for tick in ticks if low <= tick <= high]
    cell.set_xticks(shown, [f"{tick:g}" for tick in shown])
    cell.set_xticks([], minor=True)
    for side in ("top", "right"):
        cell.spines[side].set_visible(False)


def main() -> int:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    reports = {path.stem: read_result(path) for path in sorted(engines.RESULTS.glob("quality-*.json"))}
    formats = [reports[name] for name in ("quality-kv-fp32-weights", "quality-kv-formats") if name in reports]
    policies = [reports[name] for name in ("quality-kv-policies",) if name in reports]
    served = [reports[name] for name in ("quality-head-profile",) if name in reports]
    figure, axes = plt.subplots(1, 3, figsize=(20, 6.5))
    panel(axes[0], formats, "kl", "mean", "KL divergence, fp32 weights")
    panel(axes[1], policies, "copy", "gap", "repeat-copy gap of policies in 16 bits, context of 1,024")
    panel(axes[2], served, "copy", "gap", "repeat-copy gap of the head profile, context of 8,192")
    figure.suptitle("What each saving costs on the embedded model (circle: setting, cross: control at the same bytes)")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=80)
    print(f"written: {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
