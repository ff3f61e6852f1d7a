"""Plays one workload with all contenders in turns: everybody starts, warms up, and then A B C, B C A, C A B."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvasir.claims.result_file import current_commit
from side_by_side import records
from side_by_side.contenders import Contender, usable_cores
from side_by_side.places import LOGS, ROOT
from side_by_side.processes import Watch
from side_by_side.records import Failure, Record
from side_by_side.worker_process import WorkerFailure, WorkerProcess
from side_by_side.workloads import Workload, warm_up

BUSY_CORES = 0.15
"""Of others, above which a round is not believed and is played again."""
MAX_TRIES = 2
LOOK_S = 0.25
PATIENCE_S = 30.0
"""How long a round waits for others to leave the cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """``path`` gets a line for every round; ``first_round`` makes the prompts of a later slice new ones."""

    workload: Workload
    rounds: int
    first_round: int
    path: Path

    async def play(self, contenders: Sequence[Contender]) -> None:
        """Raises nothing for a program that fails: its failure is recorded and the others go on."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        async with contextlib.AsyncExitStack() as stack:
            workers: list[tuple[Contender, WorkerProcess]] = []
            for contender in contenders:
                try:
                    worker = await stack.enter_async_context(self._opened(contender))
                    workers.append((contender, worker))
                except WorkerFailure as error:
                    self._failed(contender, stamp, error)
            for number in range(self.rounds):
                shift = number % max(1, len(workers))
                for contender, worker in [*workers[shift:], *workers[:shift]]:
                    if number == 0 or self.workload.name not in contender.once:
                        await self._round(contender, worker, turn=f"{stamp}-{number}", number=number)

    @contextlib.asynccontextmanager
    async def _opened(self, contender: Contender) -> AsyncIterator[WorkerProcess]:
        LOGS.mkdir(parents=True, exist_ok=True)
        log = LOGS / f"{contender.name.replace(' ', '-')}-{self.workload.name}.log"
        settings = contender.settings(self.workload, usable_cores())
        worker = await WorkerProcess.open(contender.python, contender.module, settings, log)
        try:
            await warm_up(worker.ask)
            print(f"  {contender.name}: first token {worker.start_to_first_token_s:.2f} s after its start", flush=True)
            yield worker
        finally:
            await worker.close()

    async def _round(self, contender: Contender, worker: WorkerProcess, *, turn: str, number: int) -> None:
        assert worker.ready is not None
        for attempt in range(MAX_TRIES):
            await _until_quiet(worker)
            seed = _seed(self.first_round + number, attempt)
            try:
                with Watch(worker.pid, ours=[worker.own_pid]) as watch:
                    outcome = await self.workload.play(worker.ask, seed)
            except WorkerFailure as error:
                self._failed(contender, turn, error)
                return
            is_last = attempt == MAX_TRIES - 1
            if watch.other_cores > BUSY_CORES and not is_last:
                print(f"  {contender.name}: others used {watch.other_cores:.2f} cores: again", flush=True)
                continue
            record = Record(
                workload=self.workload.name,
                contender=contender.name,
                turn=turn,
                seed=seed,
                figures=outcome.figures,
                tokens=outcome.tokens,
                peak_bytes=watch.peak_bytes,
                other_cores=watch.other_cores,
                start_to_first_token_s=worker.start_to_first_token_s,
                about=worker.ready.about,
                commit=current_commit(ROOT),
                date=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            records.append(self.path, record)
            print(f"  {contender.name}: {_brief(record)}", flush=True)
            return

    def _failed(self, contender: Contender, turn: str, error: WorkerFailure) -> None:
        failure = Failure(workload=self.workload.name, contender=contender.name, turn=turn, error=str(error))
        records.append(self.path, failure)
        print(f"  {contender.name}: FAILED: {error}", flush=True)


async def _until_quiet(worker: WorkerProcess) -> None:
    """Return when a quarter of a second passes with nobody else at work, at the latest after ``PATIENCE_S``."""
    for _ in range(int(PATIENCE_S / LOOK_S)):
        with Watch(worker.pid, ours=[worker.own_pid]) as watch:
            await asyncio.sleep(LOOK_S)
        if watch.other_cores < BUSY_CORES:
            return


def _seed(number: int, attempt: int) -> int:
    """The same for every program in a round, far from the next round's, so that no prompt is met twice by chance."""
    return 1_000_000 + 10_000 * number + 1_000 * attempt


def _brief(record: Record) -> str:
    shown = [f"{name} {value:.4g}" for name, value in record.figures.items() if not isinstance(value, list)]
    busy = f", others {record.other_cores:.2f} cores" if record.other_cores > BUSY_CORES else ""
    return f"{', '.join(shown)}, {record.peak_bytes / 2**30:.2f} GiB{busy}"
