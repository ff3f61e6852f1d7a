"""Sinks and window against masked dense attention, whose mask is written out from the law and not taken from the code.

A query in block b sees tokens of blocks [0, S/B) and [b - W/B, b], causally; S and W are rounded up to whole blocks.
"""

import pytest
import torch
from paged_scenes import Setup, play, random_product
from torch import Tensor

from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kernels.interface import HeadShape, Kernels
from kvasir.kernels.reference import ReferenceKernels
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.retention import windowed

WINDOWS = [8, 16, 17, 31, 32, 48, 63, 64]
CHUNKS = [1, 5, 16, 33, 1000]
BOUND = 3e-6


def up(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def visible(num_tokens: int, sinks: int, window: int, block_size: int) -> Tensor:
    """bool [query, key]."""
    block = torch.arange(num_tokens) // block_size
    query, key = block[:, None], block[None, :]
    is_kept = (key < up(sinks, block_size)) | (key >= query - up(window, block_size))
    return is_kept & torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()


def dense(setup: Setup, product: Tensor, mask: Tensor) -> Tensor:
    """Attention over plain tensors [T, heads, D] in fp64, with the rotation the scenes use."""
    shape: HeadShape = setup.shape
    heads = product.double().unflatten(-1, (-1, shape.head_dim))
    q, k, v = heads.split([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
    q, k = turn(q).float().double(), turn(k).float().double()  # what is kept, and what is asked with, is fp32
    per_head = shape.num_heads // shape.num_kv_heads
    k, v = k.repeat_interleave(per_head, dim=1), v.repeat_interleave(per_head, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * setup.scale
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def turn(x: Tensor) -> Tensor:
    num_tokens, _, dim = x.shape
    angles = torch.arange(num_tokens)[:, None].double() * 10000.0 ** (-torch.arange(0, dim, 2).double() / dim)
    cos, sin = angles.cos().float().double()[:, None], angles.sin().float().double()[:, None]
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def edges(sinks: int, window: int, block_size: int) -> list[int]:
    """Lengths around the ends of sinks, of the window, and of the first block that is dropped."""
    kept = (up(sinks, block_size) + up(window, block_size)) * block_size
    around = {block_size, kept, kept + block_size, kept + 3 * block_size, 512, 512 + block_size}
    return sorted({edge + step for edge in around for step in (-1, 0, 1)})


def check(setup: Setup, kernels: Kernels, sinks: int, window: int, chunks: list[int]) -> None:
    longest = max(edges(sinks, window, setup.block_size))
    product = random_product(setup, longest, seed=window)
    expected = dense(setup, product, visible(longest, sinks, window, setup.block_size))
    for chunk in chunks:
        out = play(setup, kernels, product, chunk, num_blocks=64, fill=float("nan"))
        assert out.isfinite().all()
        # Every length at once: a position's output does not know how long its sequence becomes.
        worst = (out - expected).abs().amax(dim=(1, 2))
        assert worst.max() <= BOUND * expected.abs().max(), (chunk, int(worst.argmax()))


def windowed_setup(sinks: int, window: int, block_size: int = 16, **shape: int) -> Setup:
    return Setup(block_size=block_size, retention=windowed(sinks=sinks, window=window), **shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("sinks", [0, 4, 16, 20])
def test_every_window_in_every_chunking(cpu: CpuKernels, sinks: int, window: int) -> None:
    check(windowed_setup(sinks, window), cpu, sinks, window, CHUNKS)


@pytest.mark.parametrize("window", [8, 40])
def test_every_instruction_set(each_isa: CpuKernels, window: int) -> None:
    setup = windowed_setup(4, window, head_dim=40, num_heads=9, num_kv_heads=3)
    check(setup, each_isa, 4, window, CHUNKS)


@pytest.mark.parametrize("block_size", [32, 64])
def test_the_block_size_rounds(cpu: CpuKernels, block_size: int) -> None:
    check(windowed_setup(4, 40, block_size), cpu, 4, 40, CHUNKS)


@pytest.mark.parametrize("window", [8, 33, 64])
def test_the_reference_too(reference: ReferenceKernels, window: int) -> None:
    check(windowed_setup(4, window), reference, 4, window, [5, 1000])


def test_windows_of_several_segments(cpu: CpuKernels) -> None:
    """More sinks than a segment holds, and a window that reaches over three."""
    setup = windowed_setup(600, 1100)
    product = random_product(setup, 2500)
    expected = dense(setup, product, visible(2500, 600, 1100, 16))
    for chunk in (700, 64):
        out = play(setup, cpu, product, chunk)
        assert (out - expected).abs().max() <= BOUND * expected.abs().max()


def test_a_window_longer_than_the_sequence_hides_nothing(cpu: CpuKernels) -> None:
    setup = windowed_setup(4, 5000)
    product = random_product(setup, 700)
    everything = torch.ones(700, 700, dtype=torch.bool).tril()
    expected = dense(setup, product, everything)
    out = play(setup, cpu, product, 100)
    assert (out - expected).abs().max() <= BOUND * expected.abs().max()


def test_what_is_dropped_has_no_say(cpu: CpuKernels) -> None:
    """Non-finite keys and values between sinks and window change no bit of the queries that do not see them."""
    setup = Setup(k_dtype=KVDtype.BF16, v_dtype=KVDtype.BF16, retention=windowed(sinks=4, window=32))
    product = random_product(setup, 200)
    clean = play(setup, cpu, product, 64)
    product[40, setup.num_heads * setup.head_dim :] = float("nan")
    for chunk in (1, 64, 200):
        dirty = play(setup, cpu, product, chunk)
        # Token 40 is in block 2; block 5 is the first whose window begins behind it.
        assert torch.equal(dirty[80:], clean[80:])
        assert dirty[79].isnan().any()
