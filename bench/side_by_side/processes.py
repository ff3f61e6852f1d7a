"""What processes use, from /proc: memory of a program's tree, CPU time of ours and of everybody else."""

import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

SAMPLE_S = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[psutil.Process]:
    """The process and all its descendants that are there now."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def resident_bytes(pid: int) -> int:
    total = 0
    for process in tree(pid):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def cpu_s(pids: Iterable[int]) -> float:
    """CPU time of these trees so far, user and system; a process in two of them counts once."""
    total = 0.0
    for process in {process for pid in pids for process in tree(pid)}:
        try:
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


def machine_busy_s() -> float:
    """CPU time that the whole machine has spent on anything but waiting."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / _TICKS


class Watch:
    """While it is entered: the largest memory of ``pid``'s tree, and how many cores others than it, the trees of
    ``ours`` and this process kept busy."""

    def __init__(self, pid: int, ours: Sequence[int] = ()) -> None:
        self._pid = pid
        self._ours = {pid, *ours}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak_bytes = 0
        self.other_cores = 0.0

    def __enter__(self) -> "Watch":
        self._started_s, self._others_s = time.monotonic(), self._others()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        elapsed_s = time.monotonic() - self._started_s
        self.other_cores = max(0.0, (self._others() - self._others_s) / elapsed_s)

    def _others(self) -> float:
        return machine_busy_s() - cpu_s(self._ours) - sum(os.times()[:2])

    def _sample(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, resident_bytes(self._pid))
            if self._ends.wait(SAMPLE_S):
                return
