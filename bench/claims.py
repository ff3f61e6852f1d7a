"""Lists every claim of every result file with its target, unmet ones first."""

import argparse
import json
import sys
from pathlib import Path

from kvasir.claims.result_file import Claim, ResultFile, read_results

RESULTS = Path(__file__).parent / "results"
MARKS_IN_ORDER = [False, True, None]
MARKS = {False: "[red]no[/]", True: "[green]yes[/]", None: ""}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the claims as JSON")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of result files")
    arguments = parser.parse_args()
    rows = [(claim, result) for result in read_results(arguments.results) for claim in result.claims]
    rows.sort(key=lambda row: (MARKS_IN_ORDER.index(row[0].is_met), row[1].name, row[0].name))
    if arguments.json:
        json.dump([{**claim.as_json(), "file": f"{result.name}.json"} for claim, result in rows], sys.stdout, indent=1)
        print()
    else:
        print_table(rows)
    return 0


def print_table(rows: list[tuple[Claim, ResultFile]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Claims, unmet first", title_justify="left")
    for column in ("met", "claim", "value", "target", "file", "commit"):
        table.add_column(column, justify="right" if column in ("value", "target") else "left")
    for claim, result in rows:
        sign = "≤" if claim.better.value == "lower" else "≥"
        target = "" if claim.target is None else f"{sign} {claim.target:g} {claim.unit}"
        table.add_row(
            MARKS[claim.is_met],
            claim.name,
            f"{claim.value:g} {claim.unit}",
            target,
            f"{result.name}.json",
            result.commit[:9],
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    unmet = sum(claim.is_met is False for claim, _ in rows)
    print(f"{len(rows)} claims, {unmet} unmet")


if __name__ == "__main__":
    sys.exit(main())
