"""Law 1 on the kernels, bit for bit: nothing but the tokens before a position decides its output."""

from dataclasses import replace

import pytest
import torch
from paged_scenes import Scene, Sequence, Setup, play, random_product

from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.retention import FULL, windowed

LENGTH = 1100  # three segments

SETUPS = {
    "fp32": Setup(),
    "bf16": Setup(k_dtype=KVDtype.BF16, v_dtype=KVDtype.BF16, num_heads=9, num_kv_heads=3),
    "fp16-window": Setup(k_dtype=KVDtype.FP16, v_dtype=KVDtype.FP16, window=300),
    "int8": Setup(k_dtype=KVDtype.INT8, v_dtype=KVDtype.INT8, num_heads=9, num_kv_heads=3),
    "int8-window": Setup(k_dtype=KVDtype.INT8, v_dtype=KVDtype.INT8, num_heads=8, num_kv_heads=1, window=300),
    "int8-bf16": Setup(k_dtype=KVDtype.INT8, v_dtype=KVDtype.BF16, head_dim=72, window=37),
    "fp16-int8": Setup(k_dtype=KVDtype.FP16, v_dtype=KVDtype.INT8, head_dim=40),
    "int4": Setup(k_dtype=KVDtype.INT4, v_dtype=KVDtype.INT4, num_heads=9, num_kv_heads=3),
    "int4-window": Setup(k_dtype=KVDtype.INT4, v_dtype=KVDtype.INT4, num_heads=8, num_kv_heads=1, window=300),
    "int4-sinks": Setup(
        k_dtype=KVDtype.INT4, v_dtype=KVDtype.INT4, head_dim=128, retention=windowed(sinks=4, window=70)
    ),
    "int8-int4": Setup(k_dtype=KVDtype.INT8, v_dtype=KVDtype.INT4, head_dim=96, window=37),
    "int4-bf16": Setup(k_dtype=KVDtype.INT4, v_dtype=KVDtype.BF16, head_dim=32),
    "fp8": Setup(k_dtype=KVDtype.FP8, v_dtype=KVDtype.FP8, num_heads=9, num_kv_heads=3),
    "fp8-int4": Setup(k_dtype=KVDtype.FP8, v_dtype=KVDtype.INT4, window=37),
    "mqa": Setup(num_heads=12, num_kv_heads=1, head_dim=40),
    "sinks-window": Setup(k_dtype=KVDtype.BF16, retention=windowed(sinks=4, window=100)),
    "int8-sinks": Setup(
        k_dtype=KVDtype.INT8, v_dtype=KVDtype.INT8, num_heads=9, num_kv_heads=3, retention=windowed(sinks=4, window=70)
    ),
    "no-sinks": Setup(num_heads=9, num_kv_heads=3, retention=windowed(sinks=0, window=32)),
    "many-sinks": Setup(num_heads=4, num_kv_heads=4, retention=windowed(sinks=530, window=200)),
    "mha": Setup(num_heads=2, num_kv_heads=2, head_dim=128, k_dtype=KVDtype.BF16, v_dtype=KVDtype.FP16, window=37),
}


@pytest.fixture(params=SETUPS)
def setup(request: pytest.FixtureRequest) -> Setup:
    return SETUPS[request.param]


def test_chunk_size_changes_no_bit(each_isa: CpuKernels, setup: Setup) -> None:
    product = random_product(setup, LENGTH)
    one_by_one = play(setup, each_isa, product, 1)
    assert one_by_one.isfinite().all()
    for chunk in (7, 64, 512, LENGTH):
        assert torch.equal(play(setup, each_isa, product, chunk), one_by_one), chunk


def test_block_size_and_placement_change_no_bit(each_isa: CpuKernels, setup: Setup) -> None:
    product = random_product(setup, LENGTH)
    expected = play(setup, each_isa, product, 64)
    # With sinks and a window the block size is part of what a query sees.
    for block_size in (16, 32, 64) if setup.retention is FULL else (16,):
        for seed in (1, 2):
            other = play(replace(setup, block_size=block_size), each_isa, product, 100, placement_seed=seed)
            assert torch.equal(other, expected), (block_size, seed)


def test_threads_change_no_bit(each_isa: CpuKernels, setup: Setup) -> None:
    product = random_product(setup, LENGTH)
    expected = play(setup, CpuKernels(1, isa=each_isa.isa), product, 48)
    for threads in (2, 3, 5):
        for own_threads in (False, True):
            kernels = CpuKernels(threads, isa=each_isa.isa, own_threads=own_threads)
            assert torch.equal(play(setup, kernels, product, 48), expected), (threads, own_threads)


def test_batch_mates_change_no_bit(each_isa: CpuKernels, setup: Setup) -> None:
    products = [random_product(setup, length, seed) for seed, length in enumerate((LENGTH, 40, 700, 513))]
    alone = [play(setup, each_isa, product, 90) for product in products]
    scene = Scene(setup)
    sequences = [Sequence(product) for product in products]
    chunks = (111, 1, 77, 513)
    while any(s.num_computed < len(s.product) for s in sequences):
        parts = [
            (sequence, min(chunk, len(sequence.product) - sequence.num_computed))
            for sequence, chunk in zip(sequences, chunks, strict=True)
            if sequence.num_computed < len(sequence.product)
        ]
        scene.step(each_isa, parts[::-1])
    for sequence, expected in zip(sequences, alone, strict=True):
        assert torch.equal(sequence.output, expected)


@pytest.mark.parametrize("chunk", [1, 3, 64, 512])
def test_garbage_in_unwritten_slots_changes_no_bit(each_isa: CpuKernels, setup: Setup, chunk: int) -> None:
    product = random_product(setup, 600)
    clean = play(setup, each_isa, product, 64)
    assert torch.equal(play(setup, each_isa, product, chunk, fill=float("nan")), clean)
    assert torch.equal(play(setup, each_isa, product, chunk, fill=float("inf")), clean)


@pytest.mark.parametrize("part", ["k", "v"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_token_is_seen_by_its_successors_only(
    each_isa: CpuKernels, setup: Setup, part: str, value: float
) -> None:
    """The bad token sits in the middle of prefill tiles: queries before it must not be touched by 0 * NaN."""
    product, bad = random_product(setup, 600), 333
    clean = play(setup, each_isa, product, 64)
    heads = setup.num_heads + (0 if part == "k" else setup.num_kv_heads)
    product[bad, heads * setup.head_dim : (heads + setup.num_kv_heads) * setup.head_dim] = value
    for chunk in (1, 64, 600):
        dirty = play(setup, each_isa, product, chunk)
        assert torch.equal(dirty[:bad], clean[:bad])
        assert not dirty[bad].isfinite().any(dim=-1).all()
        if setup.window is not None and bad + setup.window < len(product):
            assert torch.equal(dirty[bad + setup.window :], clean[bad + setup.window :])
