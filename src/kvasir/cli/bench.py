"""``kvasir bench serve``: a load test of any OpenAI-compatible server, a sweep of loads, or two results compared."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvasir.cli.bench_options import (
    ENDPOINT_OPTIONS,
    LOAD_OPTIONS,
    MEASURE_OPTIONS,
    WORKLOAD_OPTIONS,
    Given,
    spelling,
)
from kvasir.cli.bench_settings import make_settings
from kvasir.cli.console import print_json, print_note
from kvasir.cli.options import OptionGroup, option, with_groups
from kvasir.core.errors import ConfigError

if TYPE_CHECKING:
    from kvasir.cli.bench_display import Display
    from kvasir.loadtest.load_test import LoadTest
    from kvasir.loadtest.runner import EndReason, Stop
    from kvasir.loadtest.settings import LoadTestSettings
    from kvasir.loadtest.sweep import Sweep

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_FAILED, _INTERRUPTED = 1, 130

_OUTPUT_OPTIONS = OptionGroup(
    parameters=(
        option("path", Path, "--output", "-o", help="Result file. [default: kvasir-bench/<date>.json]"),
        option("html", Path, "--html", help="Write a report with plots, one file."),
        option("as_json", bool, "--json", help="Print the result as JSON, without lists of requests.", default=False),
    ),
    build=lambda given: given,
)


@group.callback()
def _bench() -> None:
    """Load-test a server."""


@with_groups(
    endpoint=ENDPOINT_OPTIONS,
    workload=WORKLOAD_OPTIONS,
    load=LOAD_OPTIONS,
    measure=MEASURE_OPTIONS,
    output=_OUTPUT_OPTIONS,
)
def run(
    endpoint: Given,
    workload: Given,
    load: Given,
    measure: Given,
    output: Given,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="A.json B.json", help="Compare two results; no load."),
    ] = None,
) -> None:
    if compare is not None:
        _refuse_with_compare((endpoint, workload, load, measure))
        _compare(*compare, output)
        return
    settings, sweep = make_settings(endpoint, workload, load, measure)
    outputs = _Outputs(output, default_name=datetime.now().strftime("%Y%m%d-%H%M%S"))
    reason = asyncio.run(_test(settings, outputs) if sweep is None else _sweep(settings, sweep, outputs))
    _exit(reason, has_failures=outputs.has_failures)


group.command("serve", help="Send a load to a server and measure it.")(run)


class _Outputs:
    """Where results go; whether they can go there is known before the load."""

    def __init__(self, given: Given, default_name: str) -> None:
        from kvasir.loadtest.result import check_writable
        from kvasir.report.page import check_can_draw

        self.path: Path = given["path"] or Path("kvasir-bench") / f"{default_name}.json"
        self.html: Path | None = given["html"]
        self.as_json: bool = given["as_json"]
        self.has_failures = False
        check_writable(self.path)
        if self.html is not None:
            check_can_draw()
            check_writable(self.html)

    def write(self, data: dict[str, Any]) -> None:
        from kvasir.loadtest.result import write_json

        write_json(self.path, data)

    def name_files(self) -> None:
        for path in (self.path, self.html):
            if path is not None:
                print_note(f"written: {path}")


async def _test(settings: "LoadTestSettings", outputs: _Outputs) -> "EndReason":
    """After every run the result is written, so that nothing is lost whatever comes."""
    from kvasir.cli.bench_print import print_result
    from kvasir.loadtest.report import load_page
    from kvasir.loadtest.result import BenchResult, result_json, summary_json

    async with _opened(settings) as (test, display):
        runs, result = [], None
        for point in test.points():
            runs.append(await test.run(point, display.watch))
            result = BenchResult.of(runs, settings)
            outputs.write(result_json(result, test))
            if test.stop.is_set:
                break
    assert result is not None  # there is at least one point
    if outputs.html is not None:
        load_page(result, test).write(outputs.html)
    if outputs.as_json:
        print_json(summary_json(result, test))
    else:
        print_result(result, test)
    outputs.name_files()
    outputs.has_failures = result.measures.num_failed > 0
    return result.end_reason


async def _sweep(settings: "LoadTestSettings", sweep: "Sweep", outputs: _Outputs) -> "EndReason":
    """After every point the result is written."""
    from kvasir.cli.bench_print import print_sweep
    from kvasir.loadtest.report import sweep_page
    from kvasir.loadtest.sweep import judge
    from kvasir.loadtest.sweep_run import run_point, sweep_json

    async with _opened(settings) as (test, display):
        points = []
        for value in sweep.values:
            points.append(await run_point(test, sweep, value, display.watch))
            outputs.write(sweep_json(sweep, points, judge(points, settings.measure.slo), test))
            if test.stop.is_set:
                break
    verdict = judge(points, settings.measure.slo)
    if outputs.html is not None:
        sweep_page(sweep, points, verdict, test).write(outputs.html)
    if outputs.as_json:
        print_json(sweep_json(sweep, points, verdict, test))
    else:
        print_sweep(points, verdict, test)
    outputs.name_files()
    outputs.has_failures = any(point.measures.num_failed for point in points)
    return points[-1].result.end_reason


@asynccontextmanager
async def _opened(settings: "LoadTestSettings") -> AsyncIterator[tuple["LoadTest", "Display"]]:
    """The test, what shows it, and signals that end it in order."""
    from kvasir.cli.bench_display import live_display
    from kvasir.loadtest.load_test import opened

    with live_display() as display:
        async with opened(settings, display) as test:
            print_note(_headline(test))
            with _stopped_by_signals(test.stop):
                yield test, display


@contextmanager
def _stopped_by_signals(stop: "Stop") -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) ends the load and keeps what there is; the second ends the program."""
    from kvasir.loadtest.runner import EndReason

    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def end() -> None:
        for number in signals:
            loop.remove_signal_handler(number)
        print_note("stopping: what was measured so far is kept (once more to quit)")
        stop.set(EndReason.INTERRUPTED)

    for number in signals:
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _headline(test: "LoadTest") -> str:
    endpoint = test.settings.endpoint
    workload = test.settings.workload
    context = "" if test.max_tokens is None else f", context {test.max_tokens:,}"
    where = f"{endpoint.target.url}/v1{endpoint.target.api.route}"
    return f"{workload.kind.value} load on {test.preflight.model.name}{context} at {where}"


def _compare(a: Path, b: Path, output: Given) -> None:
    from kvasir.cli.bench_print import print_comparison
    from kvasir.loadtest.compare import compare, comparison_json
    from kvasir.loadtest.report import comparison_page
    from kvasir.loadtest.result import write_json
    from kvasir.loadtest.saved_result import read_side

    comparison = compare(read_side(a), read_side(b))
    if output["path"] is not None:
        write_json(output["path"], comparison_json(comparison))
    if output["html"] is not None:
        comparison_page(comparison).write(output["html"])
    if output["as_json"]:
        print_json(comparison_json(comparison))
    else:
        print_comparison(comparison)


def _refuse_with_compare(groups: Sequence[Given]) -> None:
    given = next(
        (name for one in groups for name, value in one.items() if value is not None and name != "api_key"), None
    )
    if given is not None:
        raise ConfigError(f"--compare sends no load, so {spelling(given)} has no part in it.")


def _exit(reason: "EndReason", *, has_failures: bool) -> None:
    """0 when every request was answered; 1 for failures and a lost server; 130 when interrupted."""
    from kvasir.loadtest.runner import EndReason

    if reason is EndReason.INTERRUPTED:
        raise typer.Exit(_INTERRUPTED)
    if has_failures or not reason.is_orderly:
        raise typer.Exit(_FAILED)
