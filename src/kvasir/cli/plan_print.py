"""Prints a plan for people: tables, commands to paste, warnings, notes."""

from kvasir.cli.console import print_table
from kvasir.planner.plan import Plan
from kvasir.planner.report_tables import plan_tables


def print_plan(plan: Plan) -> None:
    for table in plan_tables(plan):
        print_table(table.title, table.columns, table.rows)
    _print_log(plan)
    _print_commands(plan)
    for _, sentence in plan.traps:
        print(f"  warning: {sentence}")
    for note in plan.notes:
        print(f"  note: {note}")


def _print_log(plan: Plan) -> None:
    if not plan.log_comparisons:
        return
    rows = [
        (
            comparison.name,
            f"{comparison.logged:,.2f}",
            f"{comparison.predicted:,.2f}",
            "exact" if comparison.is_exact else f"off by {100 * comparison.deviation:+.2f} %",
        )
        for comparison in plan.log_comparisons
    ]
    print_table("The log against the model", ("", ">logged", ">predicted", ""), rows)


def _print_commands(plan: Plan) -> None:
    print("Commands for these devices\n")
    for entry in plan.commands:
        if entry.flags is None:
            print(f"  {entry.engine.value}: {entry.reason}\n")
        else:
            print(f"  # {entry.flags.assumes}\n  {entry.flags.command}\n")
