"""Divergence of rows of logits, against the definition in double precision."""

import math

import pytest
import torch

from kvasir.lab.divergence import compare_rows, negative_log_likelihoods


def rows(num: int = 150, width: int = 700, seed: int = 0) -> torch.Tensor:
    return 4.0 * torch.randn(num, width, generator=torch.Generator().manual_seed(seed))


def by_definition(reference: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    p, q = torch.log_softmax(reference.double(), 1), torch.log_softmax(other.double(), 1)
    return (p.exp() * (p - q)).sum(1)


@pytest.mark.parametrize("size", [1e-3, 1e-1, 3.0, 100.0])
def test_kl_is_what_the_definition_says(size):
    reference = rows()
    other = reference + size * rows(seed=1) / 4.0 + 0.37  # a shift of all logits changes nothing
    targets = torch.arange(len(reference))
    found = compare_rows(reference, other, targets)
    expected = by_definition(reference, other)
    assert torch.allclose(found.kl, expected, rtol=1e-3, atol=1e-12)
    nll = -torch.log_softmax(other.double(), 1)[targets, targets]
    assert torch.allclose(found.nll, nll, rtol=1e-6, atol=1e-6)
    assert torch.equal(found.is_same_best, reference.argmax(1) == other.argmax(1))


def test_a_kl_far_below_the_rounding_of_a_log_softmax_is_not_lost():
    reference = rows()
    other = (reference.double() * (1 + 1e-5)).float()
    found = compare_rows(reference, other, torch.zeros(len(reference), dtype=torch.int64))
    expected = by_definition(reference, other)
    assert expected.mean() < 1e-8
    assert found.kl.mean().item() == pytest.approx(expected.mean().item(), rel=0.05)


def test_equal_rows_have_no_divergence_at_all():
    reference = rows()
    found = compare_rows(reference, reference.clone(), torch.zeros(len(reference), dtype=torch.int64))
    assert found.kl.abs().max() == 0.0
    assert found.is_same_best.all()


def test_neither_side_is_changed():
    reference, other = rows(), rows(seed=1)
    before = reference.clone(), other.clone()
    compare_rows(reference, other, torch.zeros(len(reference), dtype=torch.int64))
    assert torch.equal(reference, before[0]) and torch.equal(other, before[1])


def test_a_uniform_distribution_costs_the_logarithm_of_its_size():
    nll = negative_log_likelihoods(torch.full((3, 50), 7.0), torch.tensor([0, 25, 49]))
    assert torch.allclose(nll, torch.full((3,), math.log(50), dtype=torch.float64))


def test_no_rows_are_no_error():
    none = torch.zeros(0, dtype=torch.int64)
    assert len(negative_log_likelihoods(torch.zeros(0, 5), none)) == 0
    assert len(compare_rows(torch.zeros(0, 5), torch.zeros(0, 5), none).kl) == 0
