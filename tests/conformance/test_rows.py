"""The row kernels against the reference: norms, rotations, epilogues and quantised rows, one row at a time."""

import pytest
import torch
from tolerances import TOLERANCES
from torch import Tensor

from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kernels.interface import Kernels, Product, Rows, RowStyle
from kvasir.kernels.reference import ReferenceKernels
from kvasir.kernels.rotation import hadamard

# (row length, rotation): the embedded model's widths, and odd ones that end within a vector.
WIDTHS = [(576, 64), (1536, 512), (2048, 1024), (40, 8), (44, 4), (6, 2), (64, 16)]
STYLES = ["dense", "rotated", "quantised", "rotated and quantised"]


def style_of(name: str, rotation: int) -> RowStyle:
    return RowStyle(is_quantised="quantised" in name, rotation=rotation if "rotated" in name else 0)


def integer_product(num_rows: int, width: int, *, has_bias: bool = True) -> Product:
    return Product(
        torch.randint(-(2**25), 2**25, (num_rows, width), dtype=torch.int32),
        torch.rand(num_rows) * 1e-6,
        torch.rand(width),
        torch.randn(width) if has_bias else None,
    )


def dense_product(num_rows: int, width: int, *, has_bias: bool = True) -> Product:
    return Product(torch.randn(num_rows, width), bias=torch.randn(width) if has_bias else None)


PRODUCTS = {"int32": integer_product, "fp32": dense_product}


def assert_rows_agree(kernel: str, got: Rows, expected: Rows) -> None:
    if expected.scale is None:
        assert got.scale is None
        error = (got.data - expected.data).abs().max()
        assert error <= TOLERANCES[kernel, "relative"] * expected.data.abs().max()
        return
    assert got.scale is not None
    difference = (got.data.int() - expected.data.int()).abs()
    assert difference.max() <= TOLERANCES["quantised rows", "codes"]
    allowed = TOLERANCES["quantised rows", "share of codes that differ"]
    assert difference.sum() <= max(1, allowed * difference.numel())
    bound = TOLERANCES["quantised rows", "scale, relative"] * expected.scale
    assert ((got.scale - expected.scale).abs() <= bound).all()


@pytest.mark.parametrize(("width", "rotation"), WIDTHS)
@pytest.mark.parametrize("style_name", STYLES)
class TestAgainstTheReference:
    def test_norm_and_rotate(
        self, each_isa: CpuKernels, reference: ReferenceKernels, width: int, rotation: int, style_name: str
    ) -> None:
        torch.manual_seed(width)
        x, weight = torch.randn(5, width) * 3, torch.rand(width) + 0.5
        style, before = style_of(style_name, rotation), x.clone()
        assert_rows_agree(
            "norm_rows", each_isa.norm_rows(x, weight, 1e-5, style), reference.norm_rows(x, weight, 1e-5, style)
        )
        assert_rows_agree("rotate_rows", each_isa.rotate_rows(x, style), reference.rotate_rows(x, style))
        assert torch.equal(x, before)

    @pytest.mark.parametrize("make_product", PRODUCTS.values(), ids=PRODUCTS)
    @pytest.mark.parametrize("has_bias", [False, True])
    def test_epilogues(
        self,
        each_isa: CpuKernels,
        reference: ReferenceKernels,
        width: int,
        rotation: int,
        style_name: str,
        make_product: type[Product],
        has_bias: bool,
    ) -> None:
        torch.manual_seed(width)
        style, weight = style_of(style_name, rotation), torch.rand(width) + 0.5
        product, gate_up = make_product(5, width, has_bias=has_bias), make_product(5, 2 * width, has_bias=has_bias)
        residual = torch.randn(5, width)
        ours, theirs, added = residual.clone(), residual.clone(), residual.clone()
        got = each_isa.add_norm_rows(ours, product, weight, 1e-5, style)
        assert_rows_agree("norm_rows", got, reference.add_norm_rows(theirs, product, weight, 1e-5, style))
        each_isa.add_product(added, product)
        assert TOLERANCES["add_product", "ulp"] == 0
        assert torch.equal(ours, theirs)
        assert torch.equal(added, theirs)
        assert_rows_agree("swiglu_rows", each_isa.swiglu_rows(gate_up, style), reference.swiglu_rows(gate_up, style))


def every_row_kernel(kernels: Kernels, x: Tensor, style: RowStyle) -> list[Rows]:
    """Each row kernel on rows [T, 2 W]; add_product's sum is among the results."""
    weight = torch.linspace(0.5, 1.5, x.shape[1])
    added, normed = x.clone(), x.clone()
    kernels.add_product(added, Product(x))
    return [
        kernels.norm_rows(x, weight, 1e-5, style),
        kernels.rotate_rows(x.clone(), style),
        kernels.swiglu_rows(Product(x), style),
        kernels.add_norm_rows(normed, Product(x), weight, 1e-5, style),
        Rows(added),
        Rows(normed),
    ]


def assert_same_bits(got: Rows, expected: Rows) -> None:
    assert torch.equal(got.data, expected.data)
    if expected.scale is not None:
        assert got.scale is not None
        assert torch.equal(got.scale, expected.scale)


@pytest.mark.parametrize("style", [RowStyle(False, 0), RowStyle(True, 64)], ids=str)
def test_a_row_has_the_same_bits_in_every_batch(each_isa: CpuKernels, style: RowStyle) -> None:
    x = torch.randn(300, 1152, generator=torch.Generator().manual_seed(1))
    together = every_row_kernel(CpuKernels(3, isa=each_isa.isa), x, style)
    for first, last in ((0, 1), (7, 8), (299, 300), (3, 200)):
        apart = every_row_kernel(each_isa, x[first:last].contiguous(), style)
        for whole, part in zip(together, apart, strict=True):
            scale = None if whole.scale is None else whole.scale[first:last]
            assert_same_bits(part, Rows(whole.data[first:last], scale))


BAD_ROWS = {
    "nan": torch.full((1152,), 1.0).index_fill(0, torch.tensor([700]), float("nan")),
    "inf": torch.full((1152,), 1.0).index_fill(0, torch.tensor([3]), float("inf")),
    "-inf": torch.full((1152,), 1.0).index_fill(0, torch.tensor([1151]), float("-inf")),
    "all nan": torch.full((1152,), float("nan")),
}


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS)
@pytest.mark.parametrize("style", [RowStyle(False, 64), RowStyle(True, 64), RowStyle(True, 0)], ids=str)
def test_a_bad_row_shows_in_itself_and_nowhere_else(each_isa: CpuKernels, bad: Tensor, style: RowStyle) -> None:
    clean = torch.randn(3, 1152, generator=torch.Generator().manual_seed(2))
    dirty = clean.clone()
    dirty[1] = bad
    before, after = every_row_kernel(each_isa, clean, style), every_row_kernel(each_isa, dirty, style)
    for expected, got in zip(before, after, strict=True):
        for row in (0, 2):
            assert torch.equal(got.data[row], expected.data[row])
        if got.scale is not None:
            assert expected.scale is not None
            assert got.scale[1].isnan()
            assert torch.equal(got.scale[::2], expected.scale[::2])
        else:
            assert not got.data[1].isfinite().all()


def test_zero_tiny_and_huge_rows(each_isa: CpuKernels, reference: ReferenceKernels) -> None:
    base = torch.randn(5, 576, generator=torch.Generator().manual_seed(3))
    x = base * torch.tensor([0.0, 2.0**-130, 1e-20, 1e25, 2e37])[:, None]
    weight = torch.ones(576)
    for style in (RowStyle(False, 0), RowStyle(True, 0)):
        got, expected = each_isa.norm_rows(x, weight, 0.0, style), reference.norm_rows(x[3:], weight, 0.0, style)
        scale = None if got.scale is None else got.scale[3:]
        assert_rows_agree("norm_rows", Rows(got.data[3:], scale), expected)
        assert_rows_agree(
            "norm_rows", each_isa.norm_rows(x, weight, 1e-5, style), reference.norm_rows(x, weight, 1e-5, style)
        )
    quantised = each_isa.rotate_rows(x, RowStyle(True, 0))
    assert quantised.scale is not None
    assert (quantised.scale[:2] == 0).all()
    assert (quantised.data[:2] == 0).all()
    assert ((quantised.data.float() * quantised.scale[:, None] - x).abs() <= 0.51 * quantised.scale[:, None])[2:].all()
    assert (quantised.data[2:].abs().amax(dim=-1) == 127).all()


def test_rounding_is_half_to_even(each_isa: CpuKernels, reference: ReferenceKernels) -> None:
    halves = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5, -127.0, 0.49, 3.0, 0, 0, 0, 0, 63.5])
    rows = each_isa.rotate_rows(halves[None], RowStyle(True, 0))
    assert rows.data[0].tolist() == [127, 0, 2, 2, 0, -2, -2, 126, -126, -127, 0, 3, 0, 0, 0, 0, 64]
    assert torch.equal(rows.data, reference.rotate_rows(halves[None], RowStyle(True, 0)).data)


def test_rotating_twice_gives_the_row_back(each_isa: CpuKernels) -> None:
    x = torch.randn(4, 1536, generator=torch.Generator().manual_seed(4))
    for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        style = RowStyle(False, size)
        turned = each_isa.rotate_rows(x, style).data
        assert (each_isa.rotate_rows(turned, style).data - x).abs().max() < 1e-5
        assert torch.allclose(turned.view(4, -1, size), x.view(4, -1, size) @ hadamard(size, torch.float32), atol=1e-5)


def test_exponentials_stay_within_their_ulps(each_isa: CpuKernels) -> None:
    def probe(x: Tensor) -> tuple[Tensor, Tensor]:
        exp2, exp = torch.empty_like(x), torch.empty_like(x)
        each_isa._context.exponentials(x.data_ptr(), exp2.data_ptr(), exp.data_ptr(), len(x))
        return exp2, exp

    def ulps(got: Tensor, exact: Tensor) -> float:
        return ((got.double() - exact).abs() / torch.exp2(exact.log2().floor() - 23)).max().item()

    x = torch.linspace(-126, 0, 2_000_001)
    assert ulps(probe(x)[0], torch.exp2(x.double())) <= TOLERANCES["exp2 for softmax", "ulp"]
    x = torch.linspace(-87.3, 88, 2_000_001)
    assert ulps(probe(x)[1], torch.exp(x.double())) <= TOLERANCES["exp for SwiGLU", "ulp"]
    edges = torch.tensor([float("nan"), float("-inf"), -126.1, -1000.0, -0.0, 0.0])
    exp2, exp = probe(edges)
    assert exp2[0].isnan()
    assert exp[0].isnan()
    assert exp2[1:].tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert probe(torch.tensor([float("inf"), 1000.0]))[1].tolist() == [float("inf")] * 2


def test_the_peak_is_a_peak(each_isa: CpuKernels) -> None:
    """More than any kernel gets, and of the order of what a core of this century does: wider vectors do more."""
    assert 5e8 < each_isa.fma_ops_per_s() < 1e13
