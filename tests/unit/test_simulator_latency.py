"""Percentiles, TPOT and goodput by hand."""

import pytest

from kvasir.core.errors import ConfigError
from kvasir.workload.latency import Distribution, RequestTiming, Slo, percentile


def test_percentiles_interpolate_as_numpy_does():
    numpy = pytest.importorskip("numpy")
    values = sorted([5.0, 1.0, 9.0, 2.5, 2.5, 100.0])
    for q in (0, 1, 25, 50, 90, 99, 100):
        assert percentile(values, q) == pytest.approx(float(numpy.percentile(values, q)))
    with pytest.raises(ValueError):
        percentile([], 50)


def test_a_distribution_by_hand():
    found = Distribution.of([4.0, 2.0, 6.0])
    assert found is not None
    assert (found.mean, found.median, found.min, found.max, found.num_values) == (4.0, 4.0, 2.0, 6.0, 3)
    assert found.std == pytest.approx((8 / 3) ** 0.5)
    assert found.to_json(1000)["p99"] == pytest.approx(5960.0)
    assert Distribution.of([]) is None


def test_tpot_leaves_the_first_token_out():
    assert RequestTiming(ttft_s=1.0, e2e_s=3.0, num_output_tokens=5).tpot_s == 0.5
    assert RequestTiming(ttft_s=1.0, e2e_s=1.0, num_output_tokens=1).tpot_s is None


def test_objectives_are_read_as_milliseconds():
    slo = Slo.parse(["ttft:500", "tpot:50,e2el:9000"])
    assert slo == Slo(ttft_s=0.5, tpot_s=0.05, e2e_s=9.0)
    assert str(slo) == "ttft:500 tpot:50 e2el:9000" and not slo.is_empty
    assert Slo.parse([]).is_empty and str(Slo()) == "none"


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:-5", "speed:3", "ttft:x", "tpot:inf"])
def test_unreadable_objectives_are_refused(word):
    with pytest.raises(ConfigError, match="no objective"):
        Slo.parse([word])


def test_every_objective_must_be_met():
    slo = Slo(ttft_s=1.0, tpot_s=0.1, e2e_s=5.0)
    assert slo.is_met_by(RequestTiming(1.0, 5.0, 41))
    assert not slo.is_met_by(RequestTiming(1.1, 5.0, 41))
    assert not slo.is_met_by(RequestTiming(1.0, 5.1, 100))
    assert not slo.is_met_by(RequestTiming(1.0, 5.0, 40))
    assert slo.is_met_by(RequestTiming(0.5, 0.5, 1))  # no second token: nothing to be slow
