"""What ``kvasir simulate`` does with a scenario: one run, a sweep, a search for the largest rate, a curve of hits."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvasir.cli.console import print_json, print_note, print_table
from kvasir.cli.progress import progress_bars
from kvasir.cli.simulate_options import Given
from kvasir.cli.simulate_setup import Described
from kvasir.cli.simulate_traffic import describe
from kvasir.core.errors import ConfigError
from kvasir.report.page import Page, check_can_draw
from kvasir.simulator.cache_replay import CacheReplay, hit_curve
from kvasir.simulator.capacity import Capacity, CapacityQuestion, find_capacity
from kvasir.simulator.chrome_trace import ChromeTrace
from kvasir.simulator.eviction import EvictionPolicy
from kvasir.simulator.hit_table import hit_table
from kvasir.simulator.over_time import over_time
from kvasir.simulator.pages import alerts_of, capacity_page, hits_page, run_page, sweep_page
from kvasir.simulator.recorder import Recorder
from kvasir.simulator.report import make_report
from kvasir.simulator.report_tables import (
    TextTable,
    capacity_table,
    instance_table,
    latency_table,
    summary_table,
    sweep_table,
)
from kvasir.simulator.simulate import simulate
from kvasir.simulator.sweep import Axis, SweepPoint, run_sweep, shown
from kvasir.workload.latency import Slo
from kvasir.workload.traces.trace import Trace

_AUTO_SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Sizes that --hit-rates auto tries, as shares of the trace's distinct blocks."""
_TIMELINE_POINTS = 201
"""Of blocks and sequences over time, in JSON."""


class Output:
    """Prints tables or JSON, and writes the files that were asked for."""

    def __init__(self, *, as_json: bool, html: Path | None, chrome_trace: Path | None) -> None:
        self._as_json = as_json
        self._html = html
        self._chrome_path = chrome_trace
        self.chrome = None if chrome_trace is None else ChromeTrace()

    def check(self, *, is_one_run: bool) -> None:
        """Before long work: what cannot be written is refused now."""
        if self._html is not None:
            check_can_draw()
        if self._chrome_path is not None and not is_one_run:
            raise ConfigError("--chrome-trace shows one run; it goes with no --sweep, --capacity or --hit-rates.")

    def give(self, data: dict[str, Any], tables: Sequence[TextTable], page: Callable[[], Page]) -> None:
        if self._as_json:
            print_json(data)
        else:
            for table in tables:
                print_table(table.title, table.columns, table.rows)
        if self._html is not None:
            page().write(self._html)
            print_note(f"written: {self._html}")
        if self.chrome is not None and self._chrome_path is not None:
            self.chrome.write(self._chrome_path)
            left_out = f" ({self.chrome.num_left_out:,} later events left out)" if self.chrome.num_left_out else ""
            print_note(f"written: {self._chrome_path}{left_out}")


def objectives(question: Given) -> Slo:
    return Slo.parse([*(question["goodput"] or ()), *(question["more_objectives"] or ())])


def one_run(described: Described, question: Given, output: Output) -> None:
    slo = objectives(question)
    scenario = described.scenario
    recorder = Recorder(output.chrome)
    with progress_bars() as progress:
        result = simulate(scenario.trace, scenario.setup, progress, recorder=recorder)
    report = make_report(result, slo, scenario.price_per_hour)
    for alert in alerts_of(report):
        print_note(alert)
    tables = [latency_table(report), summary_table(report)]
    if len(result.instances) > 1:
        tables.append(instance_table(result))
    output.give(
        _about(described) | report.to_json() | {"timeline": over_time(result, _TIMELINE_POINTS).to_json()},
        tables,
        lambda: run_page(result, report, _subtitle(described), described.notes),
    )


def sweep(described: Described, question: Given, output: Output) -> None:
    axes = [Axis.parse(text) for text in question["sweep"]]
    if len({axis.name for axis in axes}) < len(axes):
        raise ConfigError("A setting is swept twice; give all its values in one --sweep.")
    with progress_bars() as progress:
        points = run_sweep(described.scenario, axes, objectives(question), progress)
    output.give(
        _about(described) | {"sweep": [_point_json(axes, point) for point in points]},
        [sweep_table(axes, points)],
        lambda: sweep_page(axes, points, _subtitle(described), described.notes),
    )


def _point_json(axes: Sequence[Axis], point: SweepPoint) -> dict[str, Any]:
    settings = {axis.name: shown(value) for axis, value in zip(axes, point.values, strict=True)}
    return {"settings": settings} | ({"error": point.error} if point.report is None else point.report.to_json())


def find_rate(described: Described, question: Given, traffic: Given, output: Output) -> None:
    if traffic["max_concurrency"] is not None:
        raise ConfigError("--capacity searches request rates, which a closed loop (--max-concurrency) does not have.")
    asked = CapacityQuestion(
        slo=objectives(question),
        attainment=0.95 if question["attainment"] is None else question["attainment"],
        burstiness=traffic["burstiness"] or 1.0,
        seed=traffic["seed"] or 0,
    )
    with progress_bars() as progress:
        capacity = find_capacity(described.scenario, asked, progress)
    output.give(
        _about(described) | _capacity_json(capacity),
        [capacity_table(capacity), _answer(capacity)],
        lambda: capacity_page(capacity, _subtitle(described), described.notes),
    )


def _answer(capacity: Capacity) -> TextTable:
    if capacity.best is None:
        text = "not even the lowest rate that was tried meets the objectives"
    else:
        text = f"{capacity.rate:.3g} requests/s, {capacity.best.report.output_rate:,.0f} output tokens/s"
    return TextTable(title="", columns=(), rows=[("capacity", text)])


def _capacity_json(capacity: Capacity) -> dict[str, Any]:
    return {
        "capacity_requests_per_s": capacity.rate,
        "attainment": capacity.question.attainment,
        "slo": str(capacity.question.slo),
        "probes": [
            {"request_rate": probe.rate, "is_met": probe.is_met} | probe.report.to_json() for probe in capacity.probes
        ],
    }


def replay_hit_rates(trace: Trace, question: Given, policy: EvictionPolicy | None, output: Output) -> None:
    from_share = 0.5 if question["from_share"] is None else question["from_share"]
    if not 0 <= from_share < 1:
        raise ConfigError(f"--from-share must be at least 0 and below 1, got {from_share}.")
    sizes = _sizes(trace, question["hit_rates"])
    policies = list(EvictionPolicy) if policy is None else [policy]
    with progress_bars() as progress:
        runs = hit_curve(trace, policies, sizes, progress)
    output.give(
        {"trace": trace.name, "from_share": from_share, "hit_rates": [_hit_json(run, from_share) for run in runs]},
        [hit_table(runs, from_share)],
        lambda: hits_page(runs, from_share, describe(trace)),
    )


def _hit_json(run: CacheReplay, from_share: float) -> dict[str, Any]:
    return {
        "policy": None if run.num_blocks is None else run.policy.value,
        "num_blocks": run.num_blocks,
        "block_size": run.block_size,
        "hit_rate": run.hit_rate(from_share),
        "hit_rate_all": run.hit_rate(),
    }


def _sizes(trace: Trace, text: str) -> list[int | None]:
    if text.strip() == "auto":
        distinct = len({hash_id for request in trace.requests for hash_id in request.hash_ids})
        return [*(max(1, round(distinct * share)) for share in _AUTO_SHARES), None]
    sizes: list[int | None] = []
    for word in text.split(","):
        if word.strip() == "unlimited":
            sizes.append(None)
            continue
        try:
            size = int(word.replace("_", ""))
        except ValueError:
            size = 0
        if size < 1:
            raise ConfigError(f"--hit-rates {text!r}: write sizes in blocks, like 954,1909,unlimited, or auto.")
        sizes.append(size)
    return sizes


def _about(described: Described) -> dict[str, Any]:
    return {
        "traffic": describe(described.scenario.trace),
        "deployment": described.deployment,
        "notes": list(described.notes),
    }


def _subtitle(described: Described) -> str:
    return f"{describe(described.scenario.trace)}. On {described.deployment}."
