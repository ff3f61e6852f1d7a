"""``kvasir quality``: what a cheaper cache costs on your model, as a table, a JSON file, an HTML report and a gate."""

from typing import TYPE_CHECKING

import typer

from kvasir.cli.console import print_error, print_note, print_table
from kvasir.cli.options import with_groups
from kvasir.cli.progress import progress_bars
from kvasir.cli.quality_options import Output, What, gate_options, output_options, shared_options, what_options

if TYPE_CHECKING:
    from kvasir.lab.gate import Limit
    from kvasir.lab.report import QualityRun

GATE_FAILED = 3
"""Exit status when a setting does not keep the gate's limits."""


@with_groups(what=what_options(), shared=shared_options(), limits=gate_options(), output=output_options())
def run(what: What, shared: dict[str, str], limits: "tuple[Limit, ...]", output: Output) -> None:
    """Exit status 3 when a setting does not keep a gate's limit; the limit binds the bad end of the 95 % interval."""
    from kvasir.lab.session import run_quality
    from kvasir.report.page import check_can_draw

    if output.html:
        check_can_draw()
    plan = what.plan(shared, limits)
    with progress_bars() as progress:
        outcome = run_quality(plan, progress)
    _write(outcome, output)
    if output.as_json:
        print(output.path.read_text(), flush=True)
    else:
        _show(outcome)
    for failure in outcome.gate.failures:
        print_error(f"gate: {failure.message}")
    if not outcome.gate.has_passed:
        raise typer.Exit(GATE_FAILED)


def _write(outcome: "QualityRun", output: Output) -> None:
    from kvasir.lab.page import quality_page

    print_note(f"result file: {outcome.write(output.path)}")
    if output.html:
        page = output.path.with_suffix(".html")
        quality_page(outcome).write(page)
        print_note(f"report: {page}")


def _show(outcome: "QualityRun") -> None:
    from kvasir.lab.tables import legend, summary_table

    table = summary_table(outcome)
    print_table(table.title, table.columns, table.rows)
    print("\n".join(legend(outcome)))
    for result in outcome.results:
        for note in result.notes:
            print(f"{result.title}: {note}")
    if outcome.skipped:
        print(f"Not measured, because only servers were asked: {', '.join(outcome.skipped)}.")
