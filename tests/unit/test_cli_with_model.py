"""The commands that run a model, from outside: a chat in a pipe and a terminal, a batch file, the demo, the server."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvasir.claims.result_file import read_result

SMALL = ("--kv-cache-memory", "64MiB", "--max-model-len", "1024", "--threads", "1")
KVASIR = (sys.executable, "-m", "kvasir.cli.main")
PATIENCE_S = 120


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*KVASIR, *arguments], input=text, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.mark.usefixtures("demo_model")
class TestChat:
    def test_in_a_pipe(self) -> None:
        """Answers on stdout, figures on stderr; the second turn finds the first in the cache, a reset forgets it."""
        lines = [
            "What is the capital of France?",
            "And of Italy?",
            "/reset",
            "x" * 4000,
            "Hello",
            "/quit",
            "never read",
        ]
        done = run("chat", *SMALL, "--max-tokens", "24", "--temperature", "0", text="\n".join(lines) + "\n")
        assert done.returncode == 0, done.stderr
        assert len([line for line in done.stdout.splitlines() if line.strip()]) >= 3
        assert "never read" not in done.stdout
        figures = re.findall(r"(\d+) of (\d+) prompt tokens cached · (\d+) tokens · [\d.]+ tok/s", done.stderr)
        assert len(figures) == 3
        cached, prompt = [int(figure[0]) for figure in figures], [int(figure[1]) for figure in figures]
        assert cached[0] == 0
        assert cached[1] >= prompt[0] // 16 * 16
        assert prompt[1] > prompt[0] > prompt[2]
        assert "The conversation starts anew." in done.stderr
        assert re.search(r"error: The prompt has \d+ tokens.*Start anew with /reset\.", done.stderr)

    def test_in_a_terminal_ctrl_c_ends_the_answer_only(self) -> None:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*KVASIR, "chat", *SMALL, "--sampling-seed", "1"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=os.environ | {"TERM": "dumb"},
        )
        os.close(theirs)
        try:
            screen = Screen(ours)
            screen.wait_for("Ctrl-C cuts an answer short")
            os.write(ours, b"Write a very long story about a bridge.\n")
            screen.wait_for(r"bridge\.\r\n\s*\w+ \w+ \w+")
            os.killpg(process.pid, signal.SIGINT)
            screen.wait_for(r"\r\n> $")
            os.write(ours, b"/quit\n")
            assert process.wait(timeout=PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()
            os.close(ours)


class Screen:
    """What a terminal has shown so far."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.text = ""

    def wait_for(self, pattern: str) -> None:
        """Until something new matches; what came before is not looked at again."""
        end_s = time.monotonic() + PATIENCE_S
        seen = ""
        while not (found := re.search(pattern, seen)):
            left_s = end_s - time.monotonic()
            assert left_s > 0, f"{pattern!r} did not come: {self.text[-500:]!r}"
            if select.select([self._descriptor], [], [], left_s)[0]:
                new = os.read(self._descriptor, 4096).decode(errors="replace")
                seen += new
                self.text += new
        assert found


@pytest.mark.usefixtures("demo_model")
def test_generate_answers_every_line(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 8}
    lines = [
        json.dumps({"custom_id": "a", "url": "/v1/chat/completions", "body": chat | {"temperature": 0}}),
        json.dumps({"prompt": "The capital of Italy is", "max_tokens": 2, "temperature": 0, "n": 1}),
        json.dumps({"prompt": "x", "max_tokenz": 2, "custom_id": "b"}),
        "",
        json.dumps({"prompt": ["One, two,", "A, B,"], "max_tokens": 3, "temperature": 0, "echo": True}),
        json.dumps({"prompt": "word " * 2000, "max_tokens": 3}),
        json.dumps(chat | {"n": 2, "seed": 1, "logprobs": True}),
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines) + "\n")
    done = run("generate", str(source), "-o", str(target), *SMALL)
    assert done.returncode == 1, done.stderr
    assert "6 lines answered, 2 of them with an error" in done.stderr
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert [record["line"] for record in records] == [1, 2, 3, 5, 6, 7]
    assert [record["custom_id"] for record in records] == ["a", None, "b", None, None, None]

    bodies = {record["line"]: record["response"]["body"] for record in records if record["error"] is None}
    assert bodies[1]["choices"][0]["message"]["content"].strip()
    assert bodies[1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert bodies[2]["choices"][0]["text"].startswith(" Rome")
    assert bodies[5]["choices"][0]["text"].startswith("One, two,")
    assert bodies[5]["choices"][1]["text"].startswith("A, B,")
    assert bodies[5]["usage"]["completion_tokens"] == 6
    assert [len(choice["logprobs"]["content"]) > 0 for choice in bodies[7]["choices"]] == [True, True]

    errors = {record["line"]: record["error"] for record in records if record["error"] is not None}
    assert errors[3]["param"] == "max_tokenz"
    assert errors[6]["code"] == "context_length_exceeded"


@pytest.mark.usefixtures("demo_model")
def test_demo_writes_a_result_file_and_a_picture(tmp_path: Path) -> None:
    done = run("demo", "--turns", "2", "--requests", "2", "--threads", "1", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "caching off" in done.stdout
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    result = read_result(tmp_path / "demo.json")
    chat = result.measurements["chat"]
    assert chat["same_replies"] is True
    assert [turn["num_cached_tokens"] for turn in chat["off"]] == [0, 0]
    assert chat["on"][1]["num_cached_tokens"] > 100
    variants = result.measurements["load"]["variants"]
    assert list(variants) == ["paged, continuous", "paged, static", "contiguous, continuous"]
    assert variants["contiguous, continuous"]["wasted_fraction"] > 0.6
    assert variants["paged, continuous"]["wasted_fraction"] < 0.1
    assert len({variant["num_output_tokens"] for variant in variants.values()}) == 1
    claims = {claim.name: claim for claim in result.claims}
    assert claims["paged KV: reserved but unused slots"].value == pytest.approx(
        variants["paged, continuous"]["wasted_fraction"], rel=1e-3
    )


@pytest.mark.usefixtures("demo_model")
def test_serve_says_what_it_serves_and_its_curl_line_works() -> None:
    server = subprocess.Popen([*KVASIR, "serve", *SMALL, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        shown = ""
        while "curl " not in shown:
            line = server.stdout.readline()
            assert line, f"the server ended: {shown}"
            shown += line
        assert re.search(r"--max-model-len +1024", shown)
        assert re.search(
            r"KV cache: [\d,]+ blocks of 16 tokens = [\d,]+ tokens = [\d.]+ sequences of 1,024 tokens", shown
        )
        url = re.search(r"at (http://127\.0\.0\.1:\d+/v1)", shown)
        assert url
        command = shown[shown.index("curl ") :].strip()
        assert url[1] in command
        done = subprocess.run(["bash", "-c", f"{command} --silent --fail"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["choices"][0]["message"]["content"]
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) == 0
