"""Integer products: exact in every shape, packed or not, and the largest value of a row without storing the row."""

import pytest
import torch
from torch import Tensor

from kvasir.kernels import library_product
from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kernels.interface import Int8Weights, Kernels, Product, Rows
from kvasir.kernels.reference import ReferenceKernels

# (K, N): the embedded model's, and ones that end within a step of four channels or sixteen columns.
SHAPES = [(576, 960), (1536, 576), (64, 48), (4, 16), (1, 1), (7, 33), (577, 95), (130, 17)]
NUM_ROWS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 65]


def codes(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


def exact(rows: Tensor, weights: Tensor) -> Tensor:
    return (rows.double() @ weights.double().t()).to(torch.int32)


def product(kernels: Kernels, rows: Tensor, weights: Int8Weights) -> Tensor:
    out = torch.full((len(rows), weights.num_columns), 7, dtype=torch.int32)
    kernels.multiply(Rows(rows, torch.ones(len(rows))), weights, out)
    return out


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_exact_in_every_shape(
    each_isa: CpuKernels, reference: ReferenceKernels, shape: tuple[int, int]
) -> None:
    width, num_columns = shape
    weights = codes(num_columns, width, seed=1)
    packed, plain = each_isa.pack(weights), Int8Weights(weights, num_columns, width)
    assert packed.is_packed
    assert not plain.is_packed
    for num_rows in NUM_ROWS:
        rows = codes(num_rows, width, seed=num_rows)
        for kernels in (each_isa, reference):
            for form in (packed, plain):
                assert torch.equal(product(kernels, rows, form), exact(rows, weights)), (num_rows, kernels.name)


@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1), (-1, -1)])
def test_nothing_saturates(each_isa: CpuKernels, signs: tuple[int, int]) -> None:
    rows, weights = (
        torch.full((size, 1536), sign * 127, dtype=torch.int8) for size, sign in zip((9, 35), signs, strict=True)
    )
    for form in (each_isa.pack(weights), Int8Weights(weights, 35, 1536)):
        assert (product(each_isa, rows, form) == signs[0] * signs[1] * 127 * 127 * 1536).all()


@pytest.mark.parametrize("own_threads", [True, False])
def test_threads_change_nothing(own_threads: bool) -> None:
    rows, weights = codes(5, 576, seed=3), codes(3001, 576, seed=4)
    for threads in (1, 2, 3, 8):
        kernels = CpuKernels(threads, own_threads=own_threads)
        packed = kernels.pack(weights)
        for _ in range(20):
            assert torch.equal(product(kernels, rows, packed), exact(rows, weights))


def logits(reference: ReferenceKernels, rows: Rows, weights: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    total = torch.zeros(len(rows.data), len(weights))
    reference.add_product(total, Product(exact(rows.data, weights), rows.scale, scale, bias))
    return total


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(576, 4999), (7, 33), (64, 1)], ids=str)
def test_best_columns_are_those_of_the_stored_product(
    each_isa: CpuKernels, reference: ReferenceKernels, shape: tuple[int, int], has_bias: bool
) -> None:
    width, num_columns = shape
    weights, scale = codes(num_columns, width, seed=5), torch.rand(num_columns) + 0.1
    bias = torch.randn(num_columns) * 100 if has_bias else None
    for num_rows in (1, 3, 8, 19):
        rows = Rows(codes(num_rows, width, seed=num_rows), torch.rand(num_rows))
        expected = logits(reference, rows, weights, scale, bias)
        for kernels in (each_isa, CpuKernels(3, isa=each_isa.isa), reference):
            for form in (kernels.pack(weights), Int8Weights(weights, num_columns, width)):
                best = kernels.best_columns(rows, form, scale, bias)
                assert torch.equal(best.values, expected.amax(dim=1))
                assert torch.equal(best.columns, expected.argmax(dim=1))


def test_of_equal_columns_the_lowest_is_best(each_isa: CpuKernels) -> None:
    row = codes(1, 64, seed=6)
    weights = codes(1000, 64, seed=7)
    weights[[37, 38, 500, 999]] = row  # the row with itself is the largest there is
    scale = torch.ones(1000)
    best = each_isa.best_columns(Rows(row, torch.ones(1)), each_isa.pack(weights), scale, None)
    assert best.columns.tolist() == [37]
    zeros = Rows(torch.zeros(1, 64, dtype=torch.int8), torch.zeros(1))
    assert each_isa.best_columns(zeros, each_isa.pack(weights), scale, None).columns.tolist() == [0]
    below = torch.full((1000,), -5.0)
    best = each_isa.best_columns(zeros, each_isa.pack(weights), scale, below)
    assert (best.columns.tolist(), best.values.tolist()) == ([0], [-5.0])


def test_a_broken_row_shows_in_itself_alone(each_isa: CpuKernels) -> None:
    rows = Rows(codes(3, 64, seed=8), torch.tensor([1.0, float("nan"), 1.0]))
    packed, scale = each_isa.pack(codes(200, 64, seed=9)), torch.ones(200)
    best = each_isa.best_columns(rows, packed, scale, None)
    assert best.values.isnan().tolist() == [False, True, False]
    bias = torch.zeros(200)
    bias[150] = float("nan")
    assert each_isa.best_columns(rows, packed, scale, bias).values.isnan().all()


def test_the_library_is_only_used_where_it_is_exact(
    reference: ReferenceKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, weights = codes(20, 64, seed=10), codes(40, 64, seed=11)
    monkeypatch.setattr(library_product, "is_exact", lambda: False)
    monkeypatch.setattr(torch, "_int_mm", lambda *_, **__: pytest.fail("the library was asked"))
    assert torch.equal(product(reference, rows, reference.pack(weights)), exact(rows, weights))


def test_kernels_that_keep_weights_for_the_library_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    if not library_product.is_exact():
        pytest.skip("the library's product is not exact on this machine")
    monkeypatch.setattr("kvasir.kernels.cpu.kernels.has_matrix_tiles", lambda: True)
    kernels = CpuKernels(2, isa="")
    weights = codes(333, 576, seed=12)
    kept = kernels.pack(weights)
    assert not kept.is_packed
    for num_rows in (1, 8, 9, 40):
        rows = codes(num_rows, 576, seed=num_rows)
        assert torch.equal(product(kernels, rows, kept), exact(rows, weights))
