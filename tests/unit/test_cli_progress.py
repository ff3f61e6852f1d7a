"""Progress off a terminal: a line for every stage that somebody had to wait for, and silence for the others."""

import pytest

from kvasir.cli import progress as progress_room
from kvasir.cli.progress import progress_bars


def test_long_stages_leave_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(progress_room.time, "monotonic", lambda: now_s)
    with progress_bars() as progress:
        progress("load weights", 0.0)
        progress("look around", 0.0)
        now_s += 0.5
        progress("look around", 1.0)
        progress("load weights", 0.5)
        now_s += 2.0
        progress("load weights", 1.0)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "load weights: 2.5 s\n"


def test_a_stage_may_come_twice(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(progress_room.time, "monotonic", lambda: now_s)
    with progress_bars() as progress:
        for wait_s in (1.5, 3.0):
            progress("download", 0.0)
            now_s += wait_s
            progress("download", 1.0)
    assert capsys.readouterr().err == "download: 1.5 s\ndownload: 3.0 s\n"
