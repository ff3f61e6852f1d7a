"""What a load test found, printed for people."""

from collections.abc import Sequence

from kvasir.cli.console import print_table
from kvasir.loadtest import tables
from kvasir.loadtest.compare import Comparison
from kvasir.loadtest.findings import band_notes, notes_on, sweep_notes
from kvasir.loadtest.load_test import LoadTest
from kvasir.loadtest.result import DEFINITIONS, BenchResult
from kvasir.loadtest.sweep import SweepPoint, Verdict


def print_result(result: BenchResult, test: LoadTest) -> None:
    print_table("", (), tables.facts_rows(result))
    print_table("Latencies in ms", *tables.latency_table(result.measures))
    print(f"  TPOT = {DEFINITIONS['tpot']}.")
    print(f"  ITL = {DEFINITIONS['itl']}.\n")
    if result.measures.turns:
        print_table("By turn", *tables.turns_table(result.measures))
    if result.measures.failures:
        print_table("Failures", *tables.failures_table(result.measures))
    if len(result.runs) > 1:
        print_table("By run", *tables.runs_table(result))
    _print_notes(notes_on(result, test))


def print_sweep(points: Sequence[SweepPoint], verdict: Verdict | None, test: LoadTest) -> None:
    print_table("Sweep, latencies in ms", *tables.sweep_table(points, verdict))
    print(f"  TPOT = {DEFINITIONS['tpot']}.\n")
    if verdict is not None:
        print(f"Best operating point: {verdict.best.label}.  {verdict.reason}")
        if verdict.best is not verdict.knee:
            print(f"Knee (most output per latency): {verdict.knee.label}.")
    _print_notes(sweep_notes(points, verdict, test))


def print_comparison(comparison: Comparison) -> None:
    print_table("B against A", *tables.comparison_table(comparison))
    _print_notes(band_notes(comparison))


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"note: {note}")
