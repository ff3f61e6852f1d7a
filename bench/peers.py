"""Kvasir beside llama.cpp, OpenVINO GenAI and transformers: the same prompts, in turns, with the ratio to the best."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import engines
from side_by_side import records
from side_by_side.contenders import Contender, contenders
from side_by_side.contest import Contest
from side_by_side.places import RECORDS
from side_by_side.summary import write_summary
from side_by_side.workloads import WORKLOADS

MAX_ROUNDS = 3


def main() -> int:
    # asyncio unwinds on an interrupt, which ends every program that was started; a plain termination would orphan them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    arguments = _arguments()
    if not arguments.append and not arguments.report_only:
        arguments.records.unlink(missing_ok=True)
    ceiling = engines.show_ceiling()
    if not arguments.report_only:
        chosen = _present(arguments.contenders)
        for name in arguments.workloads:
            _play(name, chosen, arguments)
    print(f"written: {write_summary(arguments.records, arguments.output, ceiling)}")
    return 0


def _play(name: str, chosen: list[Contender], arguments: argparse.Namespace) -> None:
    workload = WORKLOADS[name]
    taking_part = [contender for contender in chosen if name not in contender.leaves_out]
    done, _ = records.read(arguments.records)
    before = len({record.seed for record in done if record.workload == name})
    print(f"== {name}: {workload.says}", flush=True)
    rounds = min(arguments.rounds, workload.rounds or arguments.rounds)
    contest = Contest(workload=workload, rounds=rounds, first_round=before, path=arguments.records)
    asyncio.run(contest.play(taking_part))


def _present(names: list[str]) -> list[Contender]:
    """Those named that can run here; the reason of each other is printed."""
    chosen: list[Contender] = []
    for name in names:
        contender = contenders()[name]
        if contender.missing is None:
            chosen.append(contender)
        else:
            print(f"left out: {name}: {contender.missing}", flush=True)
    return chosen


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=_names_of(list(WORKLOADS)), default=list(WORKLOADS))
    parser.add_argument("--contenders", type=_names_of(list(contenders())), default=list(contenders()))
    parser.add_argument("--rounds", type=int, default=MAX_ROUNDS, help="turns of every program (default 3)")
    parser.add_argument("--append", action="store_true", help="keep the rounds of earlier slices")
    parser.add_argument("--report-only", action="store_true", help="measure nothing; summarise the rounds there are")
    parser.add_argument("--records", type=Path, default=RECORDS, help="where every round is noted")
    parser.add_argument("--output", type=Path, default=engines.RESULTS / "peers.json")
    return parser.parse_args()


def _names_of(known: list[str]):
    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"no such name: {', '.join(unknown)}; there are: {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
