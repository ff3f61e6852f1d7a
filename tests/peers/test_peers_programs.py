"""The adapters with the real programs: Kvasir always, each peer where `make peers` has installed it."""

import asyncio
from pathlib import Path

import pytest

from side_by_side.contenders import Contender, contenders, usable_cores
from side_by_side.weights import prepare_models
from side_by_side.worker_process import WorkerProcess
from side_by_side.workloads import WORKLOADS, prompt_of

ONE_OF_EACH = {contender.program: contender for contender in reversed(contenders().values())}


def start_and_ask(contender: Contender, log: Path) -> tuple[list[int], list[int], int | None]:
    """The tokens of a prompt, of the same again, and how many of the second's prompt were cached."""

    async def run() -> tuple[list[int], list[int], int | None]:
        settings = contender.settings(WORKLOADS["W1"], usable_cores())
        worker = await WorkerProcess.open(contender.python, contender.module, settings, log)
        try:
            first, _ = await asyncio.gather(worker.ask(prompt_of(100, 5), 6), worker.ask(prompt_of(30, 6), 6))
            again = await worker.ask(prompt_of(100, 5), 6)
            assert first.sent_s < first.times_s[0] <= first.times_s[-1] < again.sent_s
            return first.token_ids, again.token_ids, again.num_cached
        finally:
            await worker.close()

    return asyncio.run(asyncio.wait_for(run(), 300))


@pytest.mark.parametrize("program", ONE_OF_EACH)
def test_a_program_answers(program: str, demo_model: Path, tmp_path: Path) -> None:
    contender = ONE_OF_EACH[program]
    if contender.is_kvasir:
        prepare_models()
    elif contender.missing is not None:
        pytest.skip(contender.missing)
    first, again, num_cached = start_and_ask(contender, tmp_path / "log")
    assert len(first) == 6 and all(0 <= token < 49_152 for token in first)
    assert first == again or not contender.is_kvasir  # the others promise no such thing
    assert num_cached is None or num_cached >= 96
