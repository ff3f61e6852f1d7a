"""How long a second ``make run`` takes until the server answers and has given its first token; all is installed."""

import argparse
import http.client
import json
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
READY_TARGET_S, FIRST_TOKEN_TARGET_S = 6.0, 4.0
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


def ask_for_a_token(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"prompt": "The quick brown fox", "max_tokens": 1, "temperature": 0})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"the first request was answered {answer.status}: {answer.read().decode()}")
    answer.read()
    connection.close()


def start_times_s() -> tuple[float, float]:
    """Start ``make run`` in a process group of its own; the times until a healthy answer and until the first token."""
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
        ready_s = time.perf_counter() - start
        ask_for_a_token(port)
        return ready_s, time.perf_counter() - start
    finally:
        os.killpg(server.pid, signal.SIGINT)
        server.wait(timeout=60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS / "startup.json")
    arguments = parser.parse_args()

    print(f"first (sets up what is missing): {start_times_s()[0]:.2f} s")
    ready_s, first_token_s = [], []
    for run in range(arguments.runs):
        ready, first_token = start_times_s()
        ready_s.append(ready)
        first_token_s.append(first_token)
        print(f"run {run + 1}: ready after {ready:.2f} s, first token after {first_token:.2f} s")

    writer = ResultWriter(path=arguments.output, runs=arguments.runs)
    writer.measurements = {"ready_s": ready_s, "first_token_s": first_token_s}
    writer.claim(
        "second `make run` until the server answers (median)",
        statistics.median(ready_s),
        "s",
        better=Better.LOWER,
        target=READY_TARGET_S,
    )
    writer.claim(
        "start to first token, warm cache (median)",
        statistics.median(first_token_s),
        "s",
        better=Better.LOWER,
        target=FIRST_TOKEN_TARGET_S,
    )
    print(f"written: {writer.write()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
