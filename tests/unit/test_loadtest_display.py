"""What a person watches while a load runs: facts in order of their weight, rates over the last seconds, plain lines."""

import sys

import pytest

from kvasir.cli.bench_display import _Rate, facts_text, live_display
from kvasir.loadtest.client import Tally
from kvasir.loadtest.gauges import Gauge
from kvasir.loadtest.load_test import LiveView


def view(elapsed_s: float, tally: Tally, **gauges: float) -> LiveView:
    named = {Gauge[name]: value for name, value in gauges.items()}
    return LiveView(label="load", num_planned=20, elapsed_s=elapsed_s, tally=tally, gauges=named)


def test_facts() -> None:
    tally = Tally(num_running=3, num_ok=4, num_failed=2, failures={"timeout": 1, "http 429": 9})
    tally.recent_ttfts_s.extend([0.1, 0.3, 0.2])
    tally.recent_tpots_s.append(0.025)
    text = facts_text(view(12.0, tally, KV_USAGE=0.5, WAITING=7), 99.6)
    assert text == "6/20  12 s  2 failed (http 429)  3 running  100 tok/s  TTFT 200 ms  TPOT 25 ms  KV 50 %  7 queued"
    assert facts_text(view(0.0, Tally(), WAITING=0), 0.0) == "0/20  0 s  0 running  0 tok/s"


def test_the_rate_is_of_the_last_seconds() -> None:
    rate = _Rate()
    assert rate.update(0.0, 0) == 0.0
    for second in range(1, 11):
        shown = rate.update(float(second), 100 * second)
    assert shown == pytest.approx(100.0)
    for second in range(11, 21):
        shown = rate.update(float(second), 1000 + 10 * (second - 10))
    assert shown == pytest.approx(10.0)
    assert rate.update(0.5, 3) == 0.0, "another load began"


def test_off_a_terminal_there_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not sys.stderr.isatty()
    monkeypatch.setattr("kvasir.cli.bench_display._PLAIN_EVERY_S", 0.0)
    with live_display() as display:
        display("make prompts", 0.5)
        display.watch(view(0.2, Tally()))
        display.watch(view(5.0, Tally(num_ok=2)))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "load: 2/20  5 s  0 running  0 tok/s\n"
