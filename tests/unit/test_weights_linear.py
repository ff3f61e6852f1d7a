"""Linear layers: exact integers in every shape, the rotation that cancels, scratch that is reused."""

import pytest
import torch

from kvasir.engine.config import WeightDtype
from kvasir.kernels.interface import Product, Rows, RowStyle
from kvasir.kernels.reference import ReferenceKernels
from kvasir.models.linear import Int8Linear, Scratch, make_linear_maker

KERNELS = ReferenceKernels()


def values(product: Product) -> torch.Tensor:
    total = torch.zeros(product.data.shape)
    KERNELS.add_product(total, product)
    return total


@pytest.mark.parametrize(("in_features", "out_features"), [(8, 8), (7, 5), (1, 1), (33, 17), (576, 960), (1536, 3)])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 16, 17, 65])
def test_integers_are_exact(num_rows: int, in_features: int, out_features: int) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    codes = torch.randint(-127, 128, (out_features, in_features), dtype=torch.int8, generator=generator)
    rows = torch.randint(-127, 128, (num_rows, in_features), dtype=torch.int8, generator=generator)
    linear = Int8Linear(KERNELS.pack(codes), torch.ones(out_features), None, rotation=0)
    product = linear(Rows(rows, torch.ones(num_rows)), Scratch(), KERNELS)
    assert product.data.dtype is torch.int32
    assert torch.equal(product.data.long(), rows.long() @ codes.long().T)


@pytest.mark.parametrize("in_features", [24, 64, 576])
def test_the_rotation_cancels_and_helps(in_features: int) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(32, in_features, generator=generator) / in_features**0.5
    bias = torch.randn(32, generator=generator)
    x = torch.randn(50, in_features, generator=generator)
    x[:, 3] *= 60.0  # the kind of outlier channel that plain 8 bits cannot take
    exact = x @ weight.T + bias
    errors = {}
    for max_rotation in (0, 512):
        linear = make_linear_maker(WeightDtype.INT8, KERNELS, max_rotation)(weight, bias)
        product = linear(KERNELS.rotate_rows(x, linear.style), Scratch(), KERNELS)
        errors[max_rotation] = ((values(product) - exact).norm() / exact.norm()).item()
        assert linear.style.rotation == (0 if max_rotation == 0 else in_features & -in_features)
    assert errors[512] < 0.015
    assert errors[512] < errors[0]


def test_a_broken_row_stays_alone() -> None:
    linear = make_linear_maker(WeightDtype.INT8, KERNELS)(torch.randn(8, 16), None)
    x = torch.randn(3, 16)
    x[1, 4] = float("inf")
    result = values(linear(KERNELS.rotate_rows(x, linear.style), Scratch(), KERNELS))
    assert result[1].isnan().all()
    assert result[[0, 2]].isfinite().all()


@pytest.mark.parametrize(("weight_dtype", "tolerance"), [(WeightDtype.FP32, 1e-6), (WeightDtype.BF16, 0.02)])
def test_floats(weight_dtype: WeightDtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(2)
    weight, bias = torch.randn(20, 12, generator=generator), torch.randn(20, generator=generator)
    x = torch.randn(5, 12, generator=generator)
    linear = make_linear_maker(weight_dtype, KERNELS)(weight, bias)
    assert linear.style == RowStyle(is_quantised=False)
    product = linear(Rows(x), Scratch(), KERNELS)
    assert product.data.dtype is torch.float32
    torch.testing.assert_close(values(product), x @ weight.T + bias, atol=tolerance, rtol=tolerance)
    weight.zero_()
    torch.testing.assert_close(linear(Rows(x), Scratch(), KERNELS).data, product.data)


def test_scratch_is_one_buffer() -> None:
    scratch = Scratch()
    large = scratch.take(4, 10, torch.int32)
    small = scratch.take(3, 5, torch.float32)
    assert small.data_ptr() == large.data_ptr()
    assert (small.shape, small.dtype, scratch.num_bytes) == ((3, 5), torch.float32, 160)
    assert scratch.take(0, 5, torch.int32).shape == (0, 5)
