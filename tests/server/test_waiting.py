"""Small parts that wait: the mailbox, the stall watch, work that ends with its client, the pipes."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
import zmq

from kvasir.core.errors import EngineDeadError
from kvasir.server import wire
from kvasir.server.disconnect import ClientGoneError, unless_disconnected
from kvasir.server.health import StallWatch
from kvasir.server.mailbox import Mailbox
from kvasir.server.messages import Admitted


def test_a_slow_reader_gets_everything_at_once_and_in_order() -> None:
    async def scene() -> None:
        mailbox = Mailbox()
        for name in "abc":
            mailbox.put(Admitted(request_id=name))
        assert [delivery.request_id for delivery in await mailbox.take()] == ["a", "b", "c"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mailbox.take(), 0.01)
        waiting = asyncio.create_task(mailbox.take())
        await asyncio.sleep(0)
        mailbox.put(Admitted(request_id="d"))
        assert [delivery.request_id for delivery in await waiting] == ["d"]

    asyncio.run(scene())


def test_a_failure_comes_after_what_was_there_and_stays() -> None:
    async def scene() -> None:
        mailbox = Mailbox()
        mailbox.put(Admitted(request_id="a"))
        mailbox.fail(EngineDeadError("gone"))
        assert len(await mailbox.take()) == 1
        for _ in range(2):
            with pytest.raises(EngineDeadError):
                await mailbox.take()

    asyncio.run(scene())


def test_silence_and_lack_of_progress_are_told_apart() -> None:
    watch = StallWatch(timeout_s=10)
    for _ in range(20):
        watch.sign(is_progress=False)
        assert watch.observe(1, has_work=False) is None, "an idle engine that beats is well"
    reasons = []
    for _ in range(11):
        watch.sign(is_progress=False)
        reasons.append(watch.observe(1, has_work=True))
    assert reasons[:10] == [None] * 10 and "has not finished a step for 11 s" in reasons[10]
    watch.sign(is_progress=True)
    assert watch.observe(1, has_work=True) is None
    silent = [watch.observe(1, has_work=False) for _ in range(10)]
    assert silent[:9] == [None] * 9 and "has not been heard of for 11 s" in silent[9]


class Client:
    """The receiving half of an ASGI connection."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


def test_work_is_done_when_the_client_stays() -> None:
    async def scene() -> None:
        async def work() -> int:
            return 7

        async def broken() -> int:
            raise ValueError("x")

        assert await unless_disconnected(Client().receive, work()) == 7
        with pytest.raises(ValueError, match="x"):
            await unless_disconnected(Client().receive, broken())

    asyncio.run(scene())


@pytest.mark.parametrize("who", ["client", "server"])
def test_work_is_cancelled_and_cleaned_up_when_either_side_ends_it(who: str) -> None:
    async def scene() -> None:
        client, log = Client(), []

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0)
                log.append("cleaned up")

        task = asyncio.create_task(unless_disconnected(client.receive, work()))
        await asyncio.sleep(0.01)
        if who == "client":
            client.gone.set()
            with pytest.raises(ClientGoneError):
                await task
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert log == ["cleaned up"]

    asyncio.run(scene())


def test_socket_files_fit_their_path_limit_wherever_temporary_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Unix socket's path ends at about a hundred bytes; some machines have deeper temporary folders."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    directory = wire.make_directory()
    try:
        assert len(str(directory)) < 80 and directory.stat().st_mode & 0o777 == 0o700
        assert list(deep.iterdir()) == []
        context = zmq.Context()
        reader = wire.make_reader(context, directory, to_engine=True)
        writer = wire.make_writer(context, directory, to_engine=True)
        writer.send(b"hello")
        assert reader.poll(5000) and reader.recv() == b"hello"
        reader.close(linger=0)
        writer.close(linger=0)
        context.term()
    finally:
        wire.remove_directory(directory)
        wire.remove_directory(directory)
    assert not directory.exists()
