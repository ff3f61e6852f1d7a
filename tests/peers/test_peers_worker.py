"""Workers and the bench understand each other, whatever goes wrong on the way."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from side_by_side import worker_process
from side_by_side.wire import Answer, Ask, Ready, Settings, WireError, from_line, to_line
from side_by_side.worker_process import WorkerFailure, WorkerProcess

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def small_worker_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "BENCH", f"{worker_process.BENCH}{os.pathsep}{HERE}")


def settings(kv: str = "any") -> Settings:
    return Settings(
        model="m",
        program="p",
        kv=kv,
        num_threads=2,
        context_tokens=64,
        num_parallel=1,
        has_prefix_cache=True,
        options={},
    )


def with_worker(tmp_path: Path, use: Callable[[WorkerProcess], Coroutine[Any, Any, None]], kv: str = "any") -> None:
    async def run() -> None:
        worker = await WorkerProcess.open(Path(sys.executable), "small_worker", settings(kv), tmp_path / "log")
        try:
            await use(worker)
        finally:
            await worker.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_messages_survive_the_wire() -> None:
    for message in (
        Ask(number=3, prompt=[1, 2], num_output=5),
        Answer(number=3, sent_s=1.0, times_s=[1.5, 2.5, 4.5], token_ids=[7, 8, 9], num_cached=0),
        Ready(started_s=None, first_token_s=2.0, pid=1, about={"version": "1"}),
    ):
        assert from_line(to_line(message)) == message
    assert Settings.from_argument(settings().to_argument()) == settings()


def test_latencies_of_an_answer() -> None:
    answer = Answer(number=3, sent_s=1.0, times_s=[1.5, 2.5, 4.5], token_ids=[7, 8, 9])
    assert (answer.ttft_s, answer.tpot_s) == (0.5, 1.5)


@pytest.mark.parametrize("line", ["", "hello", "[]", '{"kind": "song"}', '{"kind": "ask", "number": 1}', b"\xff"])
def test_anything_else_is_no_message(line: str | bytes) -> None:
    with pytest.raises(WireError, match="not a message"):
        from_line(line)


def test_a_worker_answers_many_at_once_and_in_any_order(tmp_path: Path) -> None:
    async def use(worker: WorkerProcess) -> None:
        assert worker.ready is not None
        assert worker.ready.about == {"kv": "any", "threads": 2}
        assert 0 < worker.start_to_first_token_s < 30
        slow, fast = asyncio.create_task(worker.ask([669, 1], 2)), asyncio.create_task(worker.ask([10, 1], 3))
        done, _ = await asyncio.wait({slow, fast}, return_when=asyncio.FIRST_COMPLETED)
        assert done == {fast}
        assert (await fast).token_ids == [11, 12, 13] and (await fast).num_cached == 7
        assert (await slow).token_ids == [670, 671]
        now_s = time.monotonic()
        assert now_s - 30 < (await slow).sent_s < (await slow).times_s[0] <= now_s  # one clock for all processes

    with_worker(tmp_path, use)


def test_a_failed_request_is_told_and_the_worker_goes_on(tmp_path: Path) -> None:
    async def use(worker: WorkerProcess) -> None:
        with pytest.raises(WorkerFailure, match="a bad number"):
            await worker.ask([666], 1)
        with pytest.raises(WorkerFailure, match="asked for 4 tokens and got 3"):
            await worker.ask([667], 4)
        assert (await worker.ask([1], 1)).token_ids == [1]

    with_worker(tmp_path, use)


def test_a_worker_that_ends_early_fails_what_waits(tmp_path: Path) -> None:
    async def use(worker: WorkerProcess) -> None:
        with pytest.raises(WorkerFailure, match="ended early: I leave"):
            await worker.ask([668], 1)

    with_worker(tmp_path, use)


def test_a_worker_that_does_not_start_says_why(tmp_path: Path) -> None:
    async def use(_: WorkerProcess) -> None:
        raise AssertionError("it started")

    with pytest.raises(WorkerFailure, match="did not start: no such KV format"):
        with_worker(tmp_path, use, kv="none")


def test_a_worker_whose_bench_is_gone_ends_with_work_in_hand(tmp_path: Path) -> None:
    async def use(worker: WorkerProcess) -> None:
        slow = asyncio.create_task(worker.ask([670], 1))
        await asyncio.sleep(0.1)
        started_s = time.monotonic()
        await worker.close()
        assert time.monotonic() - started_s < 10
        with pytest.raises(WorkerFailure, match="ended early"):
            await slow

    with_worker(tmp_path, use)
