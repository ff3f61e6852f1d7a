"""Two results compared: real changes stand out, chance does not, and what cannot be said has no band."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir.loadtest.bootstrap import Resampler
from kvasir.loadtest.compare import Band, Change, Difference, compare, comparison_json
from kvasir.loadtest.result import ResultError, check_writable, write_json
from kvasir.loadtest.saved_result import read_side


def result_file(path: Path, seed: int, slower: float = 1.0, num_requests: int = 400, **more: Any) -> Path:
    """A result with lists as ``vllm bench serve`` saves them, from a known distribution."""
    rng = np.random.default_rng(seed)
    ttfts = (0.1 * slower * rng.gamma(4, 0.25, num_requests)).tolist()
    itls = [(0.02 * rng.gamma(9, 1 / 9, 11)).tolist() for _ in range(num_requests)]
    pooled = [gap for gaps in itls for gap in gaps]
    e2els = [ttft + sum(gaps) for ttft, gaps in zip(ttfts, itls, strict=True)]
    tpots = [sum(gaps) / 11 for gaps in itls]
    data: dict[str, Any] = {
        "duration": 40.0,
        "output_throughput": 12 * num_requests / 40,
        "request_throughput": num_requests / 40,
        "request_goodput": None,
        "model_id": "m",
        "num_prompts": num_requests,
        "ttfts": ttfts,
        "itls": itls,
        "output_lens": [12] * num_requests,
        "errors": [""] * num_requests,
    } | more
    for name, values in (("ttft", ttfts), ("tpot", tpots), ("itl", pooled), ("e2el", e2els)):
        data |= {f"mean_{name}_ms": 1000 * np.mean(values), f"median_{name}_ms": 1000 * np.median(values)}
        data[f"p99_{name}_ms"] = 1000 * np.percentile(values, 99)
    path.write_text(json.dumps(data))
    return path


def differences(a: Path, b: Path) -> dict[str, Difference]:
    return {one.key: one for one in compare(read_side(a), read_side(b)).differences}


def test_a_real_change_stands_out_of_the_noise(tmp_path: Path) -> None:
    found = differences(result_file(tmp_path / "a.json", 1), result_file(tmp_path / "b.json", 2, slower=1.3))
    ttft = found["mean_ttft_ms"]
    assert ttft.verdict is Change.WORSE
    assert ttft.band is Band.BOOTSTRAP
    assert ttft.low is not None and ttft.high is not None and ttft.low < 0.3 < ttft.high
    assert found["mean_itl_ms"].verdict is Change.NOISE
    assert found["output_throughput"].verdict is Change.UNKNOWN, "this file does not say when requests began"


def test_the_bands_width_is_the_noise(tmp_path: Path) -> None:
    """400 values of a gamma distribution with a coefficient of variation of 0.5, on both sides: the 95 % interval of
    the ratio of means is 1.96 * sqrt(2) * 0.5 / sqrt(400) = 6.9 % to each side."""
    found = differences(result_file(tmp_path / "a.json", 3), result_file(tmp_path / "b.json", 4))["mean_ttft_ms"]
    assert found.low is not None and found.high is not None
    assert (found.high - found.low) / 2 == pytest.approx(0.069, rel=0.2)


def test_false_alarms_are_as_rare_as_promised(tmp_path: Path) -> None:
    """Forty pairs of runs that differ by chance alone: about one in twenty leaves its band."""
    alarms = 0
    for pair in range(40):
        a = read_side(result_file(tmp_path / "a.json", 100 + 2 * pair, num_requests=60))
        b = read_side(result_file(tmp_path / "b.json", 101 + 2 * pair, num_requests=60))
        band = Resampler(a, b, rounds=300, seed=pair).interval("median_ttft_ms")
        assert band is not None
        alarms += not band[0] <= 0.0 <= band[1]
    assert alarms <= 6  # P(more than 6 of 40 at 5 %) = 0.3 %


def test_repeated_runs_give_their_own_band(tmp_path: Path) -> None:
    def runs(*means: float) -> list[dict[str, float]]:
        return [{"mean_ttft_ms": mean} for mean in means]

    noisy = [result_file(tmp_path / f"{n}.json", n, mean_ttft_ms=value, runs=runs(*values)) for n, value, values in (
        (1, 100.0, (90.0, 100.0, 110.0)), (2, 110.0, (100.0, 110.0, 120.0)))]  # fmt: skip
    found = differences(*noisy)["mean_ttft_ms"]
    assert found.band is Band.RUNS
    # Welch: difference 10, standard error sqrt(2 * 100 / 3), 4 degrees of freedom: 2.776.
    margin = 2.776 * (200 / 3) ** 0.5 / 100
    assert (found.low, found.high) == (pytest.approx(0.1 - margin), pytest.approx(0.1 + margin))
    assert found.verdict is Change.NOISE
    steady = [result_file(tmp_path / f"{n}.json", n, mean_ttft_ms=value, runs=runs(*values)) for n, value, values in (
        (3, 100.0, (99.0, 100.0, 101.0)), (4, 110.0, (109.0, 110.0, 111.0)))]  # fmt: skip
    assert differences(*steady)["mean_ttft_ms"].verdict is Change.WORSE


def test_throughput_has_a_band_when_starts_are_known(tmp_path: Path) -> None:
    def with_starts(name: str, seed: int, slower: float) -> Path:
        starts = np.linspace(0, 38, 400).tolist()
        return result_file(
            tmp_path / name, seed, start_times=[s * slower for s in starts], duration=40.0 * slower,
            output_throughput=120 / slower, request_throughput=10 / slower,
        )  # fmt: skip

    a = with_starts("a.json", 1, 1.0)
    assert differences(a, with_starts("b.json", 2, 1.02))["output_throughput"].verdict is Change.NOISE
    worse = differences(a, with_starts("c.json", 3, 1.5))["output_throughput"]
    assert worse.verdict is Change.WORSE
    assert worse.low is not None and worse.low < -1 / 3 < (worse.high or 0)


def test_what_differs_besides_is_named(tmp_path: Path) -> None:
    a = result_file(tmp_path / "a.json", 1, workload={"name": "random", "prompt_tokens": "8"}, max_concurrency=4)
    b = result_file(tmp_path / "b.json", 1, workload={"name": "random", "prompt_tokens": "9"}, max_concurrency=8)
    comparison = compare(read_side(a), read_side(b))
    assert set(comparison.unlike) == {("prompt tokens", "8", "9"), ("max concurrency", "4", "8")}
    data = comparison_json(comparison)
    assert {entry["verdict"] for entry in data["differences"]} <= {change.value for change in Change}
    assert compare(read_side(a), read_side(a)).unlike == ()


def test_failed_requests_are_left_out(tmp_path: Path) -> None:
    path = result_file(tmp_path / "a.json", 1, num_requests=20)
    data = json.loads(path.read_text())
    data["errors"][0], data["ttfts"][1] = "http 500: boom", 0.0
    path.write_text(json.dumps(data))
    side = read_side(path)
    assert len(side.latencies_s["ttft"]) == len(side.latencies_s["e2el"]) == 18
    assert len(side.latencies_s["itl"]) == len(side.itl_owner) == 18 * 11


def test_few_requests_get_no_band(tmp_path: Path) -> None:
    found = differences(
        result_file(tmp_path / "a.json", 1, num_requests=40), result_file(tmp_path / "b.json", 2, num_requests=40)
    )
    assert found["median_ttft_ms"].verdict is not Change.UNKNOWN
    assert found["p99_ttft_ms"].verdict is Change.UNKNOWN


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "cannot be read"),
        ("[]", "no result of a test"),
        ('{"sweep": "rate", "points": []}', "is a sweep"),
        ('{"output_throughput": 1, "kvasir_bench": 99}', "version 99"),
        ('{"output_throughput": 1, "ttfts": [1], "itls": [], "output_lens": [3]}', "do not fit each other"),
    ],
)
def test_what_is_no_result(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(ResultError, match=message):
        read_side(path)


def test_results_are_written_whole_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "new" / "r.json"
    check_writable(path)
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [file.name for file in path.parent.iterdir()] == ["r.json"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultError, match="cannot be written"):
        check_writable(tmp_path / "file" / "r.json")
