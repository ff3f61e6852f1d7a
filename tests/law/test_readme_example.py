"""Law: the example in README runs as it is printed, but for the port."""

import re
import subprocess
import sys

from house import ROOT

from live_server import LiveServer


def test_the_example_runs(live_server: LiveServer) -> None:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    assert len([line for line in found[1].splitlines() if line.strip()]) <= 10
    assert "http://127.0.0.1:8000/v1" in found[1]
    code = found[1].replace("http://127.0.0.1:8000", live_server.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    # Two answers: the server's, which ends with its count of cached tokens, and the one made in this process.
    assert re.search(r"\S \d+\n+\S", done.stdout), done.stdout
