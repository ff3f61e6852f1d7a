"""How long a second ``make run`` takes until the server answers: nothing is installed, the model is there already."""

import argparse
import http.client
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from kvasir.claims.result_file import Better, ResultWriter

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
TARGET_S = 6.0
PATIENCE_S = 600.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def time_until_ready_s() -> float:
    """Start ``make run`` in a process group of its own, wait for a healthy answer, and stop it again."""
    port = free_port()
    start = time.perf_counter()
    server = subprocess.Popen(
        ["make", "run", f"ARGS=--port {port}"], cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        while not is_ready(port):
            if server.poll() is not None:
                raise SystemExit(f"make run ended with status {server.returncode} before it was ready")
            if time.perf_counter() - start > PATIENCE_S:
                raise SystemExit(f"make run was not ready after {PATIENCE_S:.0f} s")
            time.sleep(0.02)
        return time.perf_counter() - start
    finally:
        os.killpg(server.pid, signal.SIGINT)
        server.wait(timeout=60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS / "startup.json")
    arguments = parser.parse_args()

    print(f"first (sets up what is missing): {time_until_ready_s():.2f} s")
    times = []
    for run in range(arguments.runs):
        times.append(time_until_ready_s())
        print(f"run {run + 1}: ready after {times[-1]:.2f} s")

    writer = ResultWriter(path=arguments.output, runs=arguments.runs, measurements={"ready_s": times})
    writer.claim(
        "second `make run` until the server answers (median)",
        statistics.median(times),
        "s",
        better=Better.LOWER,
        target=TARGET_S,
    )
    print(f"written: {writer.write()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
