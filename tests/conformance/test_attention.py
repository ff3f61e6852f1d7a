"""Paged attention against the fp64 reference: formats, head sizes, head ratios, windows, ragged batches."""

import integer_oracle
import pytest
import torch
from head_constants import fitting
from instruction_sets import runnable_isas
from paged_scenes import Scene, Sequence, Setup, play, random_product
from tolerances import TOLERANCES

from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kernels.interface import AttentionPlan, Kernels, Product
from kvasir.kernels.quantiser import quantise_rows
from kvasir.kernels.reference import ReferenceKernels
from kvasir.kernels.rotation import hadamard, rotation_size
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.retention import windowed

BOUND = TOLERANCES["attend", "relative"]


def attend_bound(k_dtype: KVDtype, v_dtype: KVDtype) -> float:
    is_coded = {KVDtype.INT8, KVDtype.INT4} & {k_dtype, v_dtype}
    return TOLERANCES["attend, integer K or V", "relative"] if is_coded else BOUND


# (tokens already in the cache, tokens of this step): decode, prefill and both, with edges at blocks and segments.
RAGGED = [(0, 1), (16, 1), (511, 1), (512, 1), (1100, 1), (0, 70), (500, 33), (15, 2), (1023, 5), (0, 16)]


def make_step(setup: Setup, kernels: Kernels, rows: list[tuple[int, int]]) -> tuple[Scene, AttentionPlan, torch.Tensor]:
    """A store that holds every row's past and present, the step's plan and its queries."""
    scene = Scene(setup, num_blocks=256 * 16 // setup.block_size)
    sequences = [Sequence(random_product(setup, past + new, seed)) for seed, (past, new) in enumerate(rows)]
    for sequence, (past, _) in zip(sequences, rows, strict=True):
        if past:
            past_plan = scene.plan([(sequence, past)])
            product = Product(sequence.product[:past])
            rotation = (torch.ones(past, setup.head_dim // 2), torch.zeros(past, setup.head_dim // 2))
            kernels.qkv_write(product, setup.shape, None, rotation, [(scene.kv, past_plan)])
            sequence.num_computed = past
    plan = scene.plan([(sequence, new) for sequence, (_, new) in zip(sequences, rows, strict=True)])
    data = torch.cat([sequence.product[sequence.num_computed :] for sequence in sequences])
    rotation = (torch.ones(len(data), setup.head_dim // 2), torch.zeros(len(data), setup.head_dim // 2))
    return scene, plan, kernels.qkv_write(Product(data), setup.shape, None, rotation, [(scene.kv, plan)])


def rounded_for_int4(q: torch.Tensor) -> torch.Tensor:
    """``q`` as the kernel reads int4 keys with it: rotated, eight bits per token and head, turned back."""
    turn = hadamard(rotation_size(q.shape[-1]))
    turned = (q.double().unflatten(-1, (-1, len(turn))) @ turn).flatten(-2).float()
    codes, scale = quantise_rows(turned)
    coded = (codes.double() * scale.double()[..., None]).unflatten(-1, (-1, len(turn)))
    return (coded @ turn.T).flatten(-2).float()


def assert_agrees(setup: Setup, kernels: CpuKernels, oracle: ReferenceKernels, rows: list[tuple[int, int]]) -> None:
    scene, plan, q = make_step(setup, kernels, rows)
    out, expected = torch.full_like(q, float("nan")), torch.empty_like(q)
    kernels.attend(q, scene.kv, plan, setup.scale, out)
    # With so many channels the query's own rounding may exceed the bound; nothing else may.
    asked = rounded_for_int4(q) if setup.k_dtype is KVDtype.INT4 and setup.head_dim >= 256 else q
    oracle.attend(asked, scene.kv, plan, setup.scale, expected)
    error = out - expected
    assert error.abs().max() <= attend_bound(setup.k_dtype, setup.v_dtype) * expected.abs().max()
    rms = TOLERANCES["attend, integer K or V", "relative rms"]
    assert error.square().mean().sqrt() <= rms * expected.square().mean().sqrt()


@pytest.mark.parametrize("dtype", list(KVDtype))
@pytest.mark.parametrize("head_dim", [32, 40, 64, 80, 128, 256])
@pytest.mark.parametrize("window", [None, 24, 700, "sinks"])
def test_agrees_with_the_reference(
    cpu: CpuKernels, reference: ReferenceKernels, dtype: KVDtype, head_dim: int, window: int | str | None
) -> None:
    rule = {"retention": windowed(sinks=4, window=300)} if window == "sinks" else {"window": window}
    setup = Setup(head_dim=fitting(head_dim, dtype), k_dtype=dtype, v_dtype=dtype, **rule)  # type: ignore[arg-type]
    assert_agrees(setup, cpu, reference, RAGGED)


@pytest.mark.parametrize("head_dim", [32, 40, 64, 128, 256])
@pytest.mark.parametrize("window", [None, 24, 700])
def test_int8_rounds_where_it_says(each_isa: CpuKernels, head_dim: int, window: int | None) -> None:
    """Against the same roundings in fp64 only codes at a boundary differ: far less than the roundings themselves."""
    setup = Setup(head_dim=head_dim, k_dtype=KVDtype.INT8, v_dtype=KVDtype.INT8, window=window)
    scene, plan, q = make_step(setup, each_isa, RAGGED)
    out = torch.full_like(q, float("nan"))
    each_isa.attend(q, scene.kv, plan, setup.scale, out)
    error = out - integer_oracle.attend(q, scene.kv, plan, setup.scale)
    assert (
        error.square().mean().sqrt()
        <= TOLERANCES["attend, int8, same roundings", "relative rms"] * out.square().mean().sqrt()
    )


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("window", [None, 24, 700])
def test_int4_keys_round_nothing_but_the_query(
    each_isa: CpuKernels, reference: ReferenceKernels, head_dim: int, window: int | None
) -> None:
    """With the query rounded as the kernel rounds it (rotated, eight bits), the reference gives the same."""
    setup = Setup(head_dim=head_dim, k_dtype=KVDtype.INT4, v_dtype=KVDtype.FP32, window=window)
    scene, plan, q = make_step(setup, each_isa, RAGGED)
    out, expected = torch.full_like(q, float("nan")), torch.empty_like(q)
    each_isa.attend(q, scene.kv, plan, setup.scale, out)
    reference.attend(rounded_for_int4(q), scene.kv, plan, setup.scale, expected)
    error = (out - expected).square().mean().sqrt()
    assert error <= TOLERANCES["attend, int4 K, q rounded alike", "relative rms"] * expected.square().mean().sqrt()


@pytest.mark.parametrize(("plain", "with_dot"), [("avx512", "avx512vnni"), ("avx2", "avxvnni"), ("neon", "neondot")])
def test_the_8_bit_dot_product_changes_no_bit(plain: str, with_dot: str) -> None:
    if not {plain, with_dot} <= set(runnable_isas()):
        pytest.skip(f"needs {with_dot}")
    setup = Setup(k_dtype=KVDtype.INT8, v_dtype=KVDtype.INT8, num_heads=9, num_kv_heads=3)
    product = random_product(setup, 600)
    for chunk in (1, 600):
        expected = play(setup, CpuKernels(1, isa=plain), product, chunk)
        assert torch.equal(play(setup, CpuKernels(1, isa=with_dot), product, chunk), expected)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (4, 4), (9, 3), (8, 1), (20, 1), (14, 2), (10, 2)])
@pytest.mark.parametrize("dtype", [KVDtype.BF16, KVDtype.INT8])
def test_every_head_ratio(
    cpu: CpuKernels, reference: ReferenceKernels, num_heads: int, num_kv_heads: int, dtype: KVDtype
) -> None:
    setup = Setup(num_heads=num_heads, num_kv_heads=num_kv_heads, k_dtype=dtype, v_dtype=dtype)
    assert_agrees(setup, cpu, reference, RAGGED)


@pytest.mark.parametrize("k_dtype", list(KVDtype))
@pytest.mark.parametrize("v_dtype", list(KVDtype))
@pytest.mark.parametrize("window", [None, 24])
def test_every_instruction_set(
    each_isa: CpuKernels, reference: ReferenceKernels, k_dtype: KVDtype, v_dtype: KVDtype, window: int | None
) -> None:
    setup = Setup(
        head_dim=fitting(72, k_dtype, v_dtype), k_dtype=k_dtype, v_dtype=v_dtype, window=window, block_size=32
    )
    assert_agrees(setup, each_isa, reference, RAGGED)


def test_large_scores_do_not_overflow(each_isa: CpuKernels, reference: ReferenceKernels) -> None:
    """Scores in the hundreds: one token takes all the weight, the others underflow to nothing."""
    setup = Setup()
    scene, plan, q = make_step(setup, each_isa, RAGGED)
    q = q * 40
    out, expected = torch.empty_like(q), torch.empty_like(q)
    each_isa.attend(q, scene.kv, plan, setup.scale, out)
    reference.attend(q, scene.kv, plan, setup.scale, expected)
    # A score of 400 carries an fp32 error of 400 * 2^-24 * a few, which the exponential turns into a relative one.
    assert (out - expected).abs().max() <= 100 * BOUND * expected.abs().max()


def test_only_the_heads_of_the_group_are_written(cpu: CpuKernels, reference: ReferenceKernels) -> None:
    """A store that holds KV heads 2 and 0 of 3 answers for their query heads, in the model's order, and no other."""
    setup = Setup(num_heads=6, num_kv_heads=2)
    scene, plan, _ = make_step(setup, cpu, RAGGED)
    scene.kv.heads = torch.tensor([2, 0], dtype=torch.int32)
    scene.kv.num_kv_heads = 3
    scene.kv.prepared = plan.prepared = None
    q = torch.randn(len(plan.slots), 9, setup.head_dim)
    out, expected = torch.full_like(q, 7.0), torch.full_like(q, 7.0)
    cpu.attend(q, scene.kv, plan, setup.scale, out)
    reference.attend(q, scene.kv, plan, setup.scale, expected)
    assert (out[:, 3:6] == 7.0).all()
    assert (out - expected).abs().max() <= BOUND * expected.abs().max()
