"""Intervals: over documents, paired, repeatable, and as wide as they must be."""

import numpy as np
import pytest

from kvasir.lab.estimate import Estimate, exact, mean_of, ratio_of


def test_a_constant_has_a_point_for_an_interval():
    found = mean_of([np.full(7, 0.25), np.full(3, 0.25)])
    assert found == Estimate(value=0.25, low=0.25, high=0.25, num_samples=10)


def test_the_mean_is_over_tokens_not_over_documents():
    assert mean_of([np.zeros(9), np.ones(1)]).value == pytest.approx(0.1)


def test_the_same_data_gives_the_same_interval():
    documents = list(np.random.default_rng(1).normal(size=(12, 40)))
    assert mean_of(documents) == mean_of([document.copy() for document in documents])


def test_documents_are_what_is_resampled():
    """Tokens that agree within a document say less than as many independent ones, and the interval shows it."""
    rng = np.random.default_rng(2)
    level = rng.normal(size=(20, 1))
    alike = mean_of(list(np.repeat(level, 50, axis=1)))
    independent = mean_of(list(rng.normal(size=(20, 50))))
    assert alike.high is not None and independent.high is not None
    assert alike.low is not None and independent.low is not None
    assert alike.high - alike.low > 3 * (independent.high - independent.low)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(3)
    num_held = 0
    for _ in range(200):
        found = mean_of(list(rng.normal(loc=0.5, size=(30, 4))))
        num_held += found.lowest <= 0.5 <= found.highest
    assert 178 <= num_held <= 200  # 95 % of 200 is 190


def test_pairing_cancels_what_both_sides_share():
    rng = np.random.default_rng(4)
    reference = [rng.normal(scale=5.0, size=30) for _ in range(10)]
    setting = [document + 0.01 + rng.normal(scale=0.001, size=30) for document in reference]
    paired = mean_of([ours - theirs for ours, theirs in zip(setting, reference, strict=True)])
    assert 0.009 < paired.lowest <= paired.highest < 0.011
    alone = mean_of(setting)
    assert alone.highest - alone.lowest > 100 * (paired.highest - paired.lowest)


def test_one_document_has_no_interval():
    found = mean_of([np.arange(4.0)])
    assert (found.value, found.low, found.high) == (1.5, None, None)
    assert found.lowest == found.highest == 1.5


def test_documents_without_samples_count_for_nothing():
    assert ratio_of(np.array([2.0, 0.0]), np.array([4, 0])) == exact(0.5, 4)
    assert mean_of([np.zeros(0)]).num_samples == 0


def test_a_growing_function_keeps_the_order():
    found = mean_of([np.array([1.0]), np.array([2.0]), np.array([4.0])]).map(np.exp)
    assert found.lowest < found.value < found.highest
