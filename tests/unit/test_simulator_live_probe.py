"""The probe of a server, against a server: a small one of our own that streams at known times, and ours for real."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvasir.simulator.calibration import CalibrationError, fit_costs
from kvasir.simulator.live_probe import LiveServer, first_model, observe, probe_server
from kvasir.simulator.probe_loads import ProbeLoad
from kvasir.simulator.step_load import StepLoad

LOADS = (
    ProbeLoad(num_sequences=1, num_prompt=100, num_output=6),
    ProbeLoad(num_sequences=3, num_prompt=40, num_output=8),
)


class Streaming(BaseHTTPRequestHandler):
    """First token after 30 ms + 0.2 ms a prompt token, then one every 10 ms."""

    def log_message(self, format, *args):
        """Silent."""

    def do_GET(self):
        self._send({"data": [{"id": "fake", "max_model_len": 512}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") != "Bearer secret":
            self.send_error(401, "no key")
            return
        self.send_response(200)
        self.end_headers()
        time.sleep(0.030 + 0.0002 * len(body["prompt"]))
        for _ in range(body["max_tokens"]):
            self.wfile.write(b'data: {"choices": [{"text": "x"}]}\n\n')
            self.wfile.flush()
            time.sleep(0.010)
        self.wfile.write(b'data: {"choices": [], "usage": {}}\n\ndata: [DONE]\n\n')

    def _send(self, value):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())


@pytest.fixture(scope="module")
def address():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Streaming)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def live(address, **changes):
    settings = {
        "base_url": address, "model": "fake", "max_num_batched_tokens": 64, "max_model_len": 512, "api_key": "secret"
    }  # fmt: skip
    return LiveServer(**(settings | changes))


def test_what_a_client_sees(address):
    assert first_model(address + "/v1") == ("fake", 512)
    observations = probe_server(live(address), LOADS, seconds=0.0)
    by_source = {observation.source: observation for observation in observations}
    prefill = by_source["1 x (100 + 6), prefill"]
    assert 0.045 <= prefill.seconds < 0.25
    assert (prefill.num_steps, prefill.num_tokens, prefill.num_reads) == (2, 100, 164)  # 64 tokens, then 36
    assert prefill.num_pairs == 5050
    decode = by_source["3 x (40 + 8), decode"]
    assert 0.009 <= decode.seconds < 0.06
    assert (decode.num_tokens, decode.num_sequences) == (3, 3)
    assert "3 x (40 + 8), prefill" not in by_source  # three prompts at once are no lone prefill


def test_loads_beyond_the_context_are_left_out(address):
    sources = {o.source for o in probe_server(live(address, max_model_len=60), LOADS, seconds=0.0)}
    assert all(source.startswith("3 x (40 + 8)") for source in sources)


def test_refusals_are_passed_on(address):
    with pytest.raises(CalibrationError, match="401"):
        probe_server(live(address, api_key=None), LOADS, seconds=0.0)
    with pytest.raises(CalibrationError, match="cannot be reached"):
        first_model("http://127.0.0.1:9")
    with pytest.raises(CalibrationError, match="no http address"):
        first_model("ftp://somewhere")


class Times:
    def __init__(self, sent_s, times_s):
        self.sent_s = sent_s
        self.times_s = times_s


def test_only_gaps_while_all_run_count():
    answers = [Times(0.0, [1.0, 2.0, 3.0, 4.0, 5.0]), Times(0.0, [2.5, 3.5, 4.5])]
    load = ProbeLoad(num_sequences=2, num_prompt=10, num_output=5)
    (decode,) = observe(load, answers, chunk=512)
    assert decode.seconds == 1.0
    assert decode.num_pairs == 2 * (10 + 2)  # gaps 3 of the first, 1 and 2 of the second: median place 2


def test_our_own_server_can_be_probed(live_server):
    server = LiveServer(base_url=live_server.url, model=first_model(live_server.url)[0],
                        max_num_batched_tokens=64, max_model_len=512)  # fmt: skip
    loads = (
        ProbeLoad(num_sequences=1, num_prompt=20, num_output=8),
        ProbeLoad(num_sequences=1, num_prompt=200, num_output=8),
        ProbeLoad(num_sequences=2, num_prompt=60, num_output=8),
    )
    observations = [o for _ in range(3) for o in probe_server(server, loads, seconds=0.0)]
    fit = fit_costs(observations)
    assert fit.num_observations == 15
    decode_s = fit.cost.step_s(StepLoad(1, 1, 1, 1, (100,), (100,)))
    assert 0.001 < decode_s < 5.0
