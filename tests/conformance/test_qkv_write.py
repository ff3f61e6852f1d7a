"""The q/k/v epilogue and the cache write against the reference, and block copies."""

from dataclasses import replace

import pytest
import torch
from head_constants import fitting
from paged_scenes import Scene, Sequence, Setup, rope
from tolerances import TOLERANCES

from kvasir.formats.registry import FORMATS
from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kernels.interface import HeadNorms, Kernels, LayerKV, Product
from kvasir.kernels.reference import ReferenceKernels
from kvasir.kv.format_spec import KVDtype

STEP = {
    KVDtype.FP32: 2.0**-23,
    KVDtype.BF16: 2.0**-7,
    KVDtype.FP16: 2.0**-10,
    KVDtype.FP8: 2.0**-3,
    KVDtype.INT8: 1 / 127,
}
"""One step of the stored format, at most, relative to the value; of int8 to the row's largest."""


CODES_THAT_DIFFER = "quantised rows", "share of codes that differ"


def write(kernels: Kernels, setup: Setup, product: Product, norms: HeadNorms | None) -> tuple[torch.Tensor, LayerKV]:
    scene = Scene(setup, num_blocks=16, placement_seed=5)
    num_tokens = len(product.data)
    plan = scene.plan([(Sequence(torch.empty(0)), num_tokens)])
    rotation = rope(torch.arange(num_tokens) + 1000, setup.head_dim)
    return kernels.qkv_write(product, setup.shape, norms, rotation, [(scene.kv, plan)]), scene.kv


@pytest.mark.parametrize("head_dim", [32, 40, 64, 72, 128])
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("is_integer", [False, True])
@pytest.mark.parametrize(("k_dtype", "v_dtype"), [(d, d) for d in KVDtype] + [(KVDtype.BF16, KVDtype.FP32)])
def test_agrees_with_the_reference(
    each_isa: CpuKernels,
    reference: ReferenceKernels,
    head_dim: int,
    has_norms: bool,
    is_integer: bool,
    k_dtype: KVDtype,
    v_dtype: KVDtype,
) -> None:
    torch.manual_seed(head_dim)
    head_dim = fitting(head_dim, k_dtype, v_dtype)
    setup = Setup(head_dim=head_dim, k_dtype=k_dtype, v_dtype=v_dtype)
    shape = (37, setup.width)
    product = Product(torch.randn(shape), bias=torch.randn(setup.width))
    if is_integer:
        codes = torch.randint(-(2**24), 2**24, shape, dtype=torch.int32)
        product = Product(codes, torch.rand(37) * 1e-6, torch.rand(setup.width), product.bias)
    norms = HeadNorms(torch.rand(head_dim) + 0.5, torch.rand(head_dim) + 0.5, 1e-6) if has_norms else None

    q, kv = write(each_isa, setup, product, norms)
    expected_q, expected_kv = write(reference, setup, product, norms)
    arithmetic = TOLERANCES["qkv_write q fp32", "relative"] * expected_q.abs().max()
    assert (q - expected_q).abs().max() <= arithmetic
    steps = TOLERANCES["K and V written", "steps of the stored format"]
    blocks = torch.arange(16)
    for dtype, got, expected in (
        (k_dtype, FORMATS[k_dtype].decode_k(kv, blocks), FORMATS[k_dtype].decode_k(expected_kv, blocks)),
        (v_dtype, FORMATS[v_dtype].decode_v(kv, blocks), FORMATS[v_dtype].decode_v(expected_kv, blocks)),
    ):
        if dtype is KVDtype.INT4:  # a code at a boundary moves those before it, so rows are compared, not codes
            differs = (got != expected).any(dim=-1)
            assert differs.float().mean() <= head_dim * TOLERANCES[CODES_THAT_DIFFER]
            assert (got - expected).norm() <= 0.1 * expected.norm()
            continue
        size = expected.abs().amax(dim=-1, keepdim=True) if dtype is KVDtype.INT8 else expected.abs()
        size = size.clamp_min(2.0**-7) if dtype is KVDtype.FP8 else size  # subnormal codes have one step for all
        assert ((got - expected).abs() <= steps * STEP[dtype] * size * (1 + 1e-5) + arithmetic).all()
        assert torch.equal(got.any(dim=-1), expected.any(dim=-1)), "exactly the tokens' slots are written"
        if dtype is KVDtype.INT8:
            assert ((got - expected).abs() > 0.5 * STEP[dtype] * size).float().mean() <= TOLERANCES[CODES_THAT_DIFFER]


@pytest.mark.parametrize("dtype", [KVDtype.FP32, KVDtype.BF16, KVDtype.FP16])
def test_v_is_rounded_like_torch_rounds(each_isa: CpuKernels, dtype: KVDtype) -> None:
    """V is stored as it comes, so every kind of value can be checked bit for bit: subnormals, ties, overflow."""
    setup = Setup(num_heads=1, num_kv_heads=1, head_dim=64, k_dtype=dtype, v_dtype=dtype)
    bits = torch.randint(-(2**31), 2**31 - 1, (100, 64), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    values = bits.view(torch.float32)
    halves = torch.arange(64).float() * 2.0**-25  # ties and subnormals of fp16
    exponents = torch.randint(-20, 20, (28, 64), generator=torch.Generator().manual_seed(2)).float()
    values = torch.cat([values, halves[None], values[:28].frexp().mantissa * torch.exp2(exponents)])
    product = Product(torch.cat([torch.randn(len(values), 128), values], dim=1))
    _, kv = write(each_isa, setup, product, None)
    written = FORMATS[dtype].decode_v(kv, torch.arange(16))[0]
    stored = {KVDtype.FP32: torch.float32, KVDtype.BF16: torch.bfloat16, KVDtype.FP16: torch.float16}[dtype]
    expected = values.to(stored).float()
    order = torch.randperm(16, generator=torch.Generator().manual_seed(5)).tolist()[::-1]
    got = torch.cat([written[block * 16 : block * 16 + 16] for block in order])[: len(values)]
    assert torch.equal(got.nan_to_num(nan=-7.0), expected.nan_to_num(nan=-7.0))


@pytest.mark.parametrize("head_dim", [40, 64])
@pytest.mark.parametrize("block_size", [16, 32])
def test_int8_v_is_the_format_s_bits(each_isa: CpuKernels, head_dim: int, block_size: int) -> None:
    """V is stored as it comes, so codes and scales can be checked bit for bit: ties, zeros, NaN, infinity, extremes."""
    dtype = KVDtype.INT8
    setup = Setup(num_heads=1, num_kv_heads=1, head_dim=head_dim, k_dtype=dtype, v_dtype=dtype, block_size=block_size)
    values = torch.randn(20, head_dim, generator=torch.Generator().manual_seed(3))
    values[1:9] *= torch.tensor([0.0, 2.0**-117, 2.0**-115, 1e-20, 1e20, 3e38, float("inf"), float("nan")])[:, None]
    values[9] = torch.arange(head_dim) / 2
    values[9, 0] = 127.0
    scene = Scene(setup, num_blocks=2)
    plan = scene.plan([(Sequence(torch.empty(0)), 20)])
    expected = tuple(tensor.clone() for tensor in scene.kv.v)
    FORMATS[dtype].encode_v(replace(scene.kv, v=expected), plan.slots, values[:, None])
    product = Product(torch.cat([torch.randn(20, 2 * head_dim), values], dim=1))
    each_isa.qkv_write(product, setup.shape, None, rope(torch.arange(20), head_dim), [(scene.kv, plan)])
    num_codes = head_dim * block_size
    (got,), (want,) = scene.kv.v, expected
    assert torch.equal(got.flatten(2)[..., :num_codes], want.flatten(2)[..., :num_codes])
    scales, wanted_scales = (tile.flatten(2)[..., num_codes:].view(torch.float32) for tile in (got, want))
    assert torch.equal(scales.nan_to_num(nan=-1.0), wanted_scales.nan_to_num(nan=-1.0))


def test_two_groups_share_one_product(each_isa: CpuKernels, reference: ReferenceKernels) -> None:
    """Heads split over two stores, out of order: each head lands in its own."""
    setup = Setup(num_heads=3, num_kv_heads=3)
    product = Product(torch.randn(20, setup.width, generator=torch.Generator().manual_seed(6)))
    rotation = rope(torch.arange(20), setup.head_dim)
    stores = []
    for kernels in (each_isa, reference):
        targets = []
        for heads, seed in (([2, 0], 1), ([1], 2)):
            scene = Scene(Setup(num_heads=len(heads), num_kv_heads=len(heads)), 4, placement_seed=seed)
            scene.kv.heads, scene.kv.num_kv_heads = torch.tensor(heads, dtype=torch.int32), 3
            targets.append((scene.kv, scene.plan([(Sequence(torch.empty(0)), 20)])))
        kernels.qkv_write(product, setup.shape, None, rotation, targets)
        stores.append([tensor for kv, _ in targets for tensor in (*kv.k, *kv.v)])
    for got, expected in zip(*stores, strict=True):
        assert torch.allclose(got, expected, atol=1e-5)


def test_copied_blocks_are_equal_and_others_untouched(each_isa: CpuKernels, reference: ReferenceKernels) -> None:
    generator = torch.Generator().manual_seed(7)
    tensors = tuple(
        torch.randint(0, 255, (9, *tile), generator=generator, dtype=torch.uint8) for tile in ((3, 5), (64,))
    )
    tensors += (torch.randn(9, 2, 64, 16, generator=generator).to(torch.bfloat16),)
    expected = tuple(tensor.clone() for tensor in tensors)
    sources, targets = torch.tensor([1, 1, 8]), torch.tensor([0, 3, 5])
    each_isa.copy_blocks(tensors, sources, targets)
    reference.copy_blocks(expected, sources, targets)
    assert all(torch.equal(got, want) for got, want in zip(tensors, expected, strict=True))
