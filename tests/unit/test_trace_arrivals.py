"""Arrival processes: the offered rate is the asked rate, bursts are bursts, ramps ramp."""

import statistics

import pytest

from kvasir.core.errors import ConfigError
from kvasir.workload.arrivals import ArrivalProcess, RampShape


def gaps(times):
    return [after - before for before, after in zip([0.0, *times], times, strict=False)]


def test_all_at_once():
    assert ArrivalProcess(rate=float("inf")).times_s(3) == [0.0, 0.0, 0.0]
    assert ArrivalProcess(rate=5.0).times_s(0) == []


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0, float("inf")])
def test_the_load_takes_exactly_as_long_as_its_rate_says(burstiness):
    times = ArrivalProcess(rate=4.0, burstiness=burstiness, seed=2).times_s(200)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(50.0)


def test_burstiness_is_the_shape_of_the_gaps():
    """The coefficient of variation of Gamma gaps is 1 / sqrt(shape)."""
    for shape, expected in ((0.25, 2.0), (1.0, 1.0), (16.0, 0.25)):
        found = gaps(ArrivalProcess(rate=1.0, burstiness=shape, seed=5).times_s(20_000))
        assert statistics.pstdev(found) / statistics.mean(found) == pytest.approx(expected, rel=0.06)
    assert len({round(gap, 9) for gap in gaps(ArrivalProcess(rate=2.0, burstiness=float("inf")).times_s(50))}) == 1


def test_same_seed_same_times():
    def times(seed):
        return ArrivalProcess(rate=3.0, seed=seed).times_s(10)

    assert times(1) == times(1) != times(2)


@pytest.mark.parametrize(("shape", "middle"), [(RampShape.LINEAR, 5.5), (RampShape.EXPONENTIAL, 10**0.5)])
def test_a_ramp_moves_from_rate_to_rate(shape, middle):
    process = ArrivalProcess(rate=1.0, end_rate=10.0, burstiness=float("inf"), ramp=shape)
    found = gaps(process.times_s(101))
    assert found[0] == pytest.approx(1.0) and found[-1] == pytest.approx(0.1)
    assert found[50] == pytest.approx(1.0 / middle)


@pytest.mark.parametrize(
    "settings",
    [{"rate": 0.0}, {"rate": -1.0}, {"rate": 1.0, "burstiness": 0.0}, {"rate": 1.0, "end_rate": float("inf")}],
)
def test_impossible_processes_are_refused(settings):
    with pytest.raises(ConfigError):
        ArrivalProcess(**settings)
