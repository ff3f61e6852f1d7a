"""int4 and fp8: bytes, bounds, odd rows, and what calibrated constants do for them."""

from dataclasses import replace

import pytest
import torch
from head_constants import made_up_constants
from paged_scenes import Scene, Sequence, Setup, play, random_product, rope
from torch import Tensor

from kvasir.core.errors import ConfigError
from kvasir.formats.constants import KVConstants
from kvasir.formats.feedback import key_feedback
from kvasir.formats.registry import FORMATS
from kvasir.formats.store import KVStore
from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kernels.interface import LayerKV, Product
from kvasir.kernels.reference import ReferenceKernels
from kvasir.kernels.rotation import hadamard
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout

BLOCKS = torch.arange(4)
SLOTS = torch.arange(64)


def make_layout(k_dtype: KVDtype, v_dtype: KVDtype, head_dim: int = 64) -> KVLayout:
    geometry = KVGeometry(num_layers=1, num_kv_heads=2, head_dim=head_dim, sliding_windows=(None,))
    return KVLayout.from_geometry(geometry, block_size=16, k_dtype=k_dtype, v_dtype=v_dtype)


def make_layer(dtype: KVDtype, constants: KVConstants | None = None, head_dim: int = 64) -> LayerKV:
    return KVStore(make_layout(dtype, dtype, head_dim), (4,), constants).layers[0][0][1]


def kept(kv: LayerKV, rows: Tensor, what: str) -> Tensor:
    """``rows`` [64, 2, D] as the cache of K or V gives them back."""
    format_ = FORMATS[kv.k_dtype]
    if what == "k":
        format_.encode_k(kv, SLOTS, rows)
        return format_.decode_k(kv, BLOCKS).transpose(0, 1)
    format_.encode_v(kv, SLOTS, rows)
    return format_.decode_v(kv, BLOCKS).transpose(0, 1)


def test_bytes_against_sixteen_bits() -> None:
    whole = make_layout(KVDtype.BF16, KVDtype.BF16).bytes_per_token
    assert make_layout(KVDtype.INT4, KVDtype.INT4).bytes_per_token / whole == 72 / 256 <= 0.30
    assert make_layout(KVDtype.INT8, KVDtype.INT4).bytes_per_token / whole == 104 / 256 <= 0.42
    assert make_layout(KVDtype.FP8, KVDtype.FP8).bytes_per_token / whole == 0.5


@pytest.mark.parametrize("what", ["k", "v"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_int4_stays_within_half_a_step(what: str, head_dim: int) -> None:
    """Rotated, each group is off by at most half of a fifteenth of its range, and the rotation keeps lengths."""
    rows = torch.randn(64, 2, head_dim, generator=torch.Generator().manual_seed(1))
    error = (kept(make_layer(KVDtype.INT4, head_dim=head_dim), rows, what) - rows).square().sum(dim=-1).sqrt()
    size = head_dim & -head_dim
    group = 64 if head_dim % 64 == 0 else 32
    groups = (rows.double().unflatten(-1, (-1, size)) @ hadamard(size)).flatten(-2).unflatten(-1, (-1, group))
    step = (groups.amax(dim=-1) - groups.amin(dim=-1)) / 15
    bound = (step.square().sum(dim=-1) * group / 4).sqrt()
    assert (error <= 1.02 * bound).all()
    assert (error >= 0.2 * bound).all(), "a bound that says nothing"


@pytest.mark.parametrize("what", ["k", "v"])
def test_fp8_stays_within_its_mantissa(what: str) -> None:
    constants = made_up_constants(1, 2, 64)
    scale = (constants.k_scale if what == "k" else constants.v_scale)[0][None, :, None]  # type: ignore[index]
    rows = torch.randn(64, 2, 64, generator=torch.Generator().manual_seed(1))
    rows[:2] *= 100  # beyond 448 units: cut, not lost
    got = kept(make_layer(KVDtype.FP8, constants), rows, what)
    inside = rows.clamp(-448 * scale, 448 * scale)
    assert ((got - inside).abs() <= inside.abs() * 2.0**-4 + scale * 2.0**-10).all()


@pytest.mark.parametrize("what", ["k", "v"])
def test_a_sink_s_own_row_is_kept_whole(what: str) -> None:
    constants = made_up_constants(1, 2, 64)
    sink = (constants.k_sink if what == "k" else constants.v_sink)[0]  # type: ignore[index]
    rows = torch.randn(64, 2, 64, generator=torch.Generator().manual_seed(1))
    rows[5] = sink
    got = kept(make_layer(KVDtype.INT4, constants), rows, what)
    assert torch.equal(got[5], sink)
    assert (got - rows).norm() < 0.4 * rows.norm()


@pytest.mark.parametrize("what", ["k", "v"])
@pytest.mark.parametrize("dtype", [KVDtype.INT4, KVDtype.FP8])
@pytest.mark.parametrize("has_centres", [False, True])
def test_odd_rows_stay_among_themselves(each_isa: CpuKernels, dtype: KVDtype, what: str, has_centres: bool) -> None:
    """Zeros, tiny and huge values are kept; NaN and infinity read as NaN; and no neighbour notices."""
    scales = replace(made_up_constants(1, 2, 64), k_center=None, k_sink=None, k_feedback=None, v_sink=None)
    constants = made_up_constants(1, 2, 64) if has_centres else scales
    odd = {3: 0.0, 4: 2.0**-120, 5: float("nan"), 6: float("inf"), 7: 1e30, 8: -3e38}
    rows = torch.randn(64, 2, 64, generator=torch.Generator().manual_seed(2))
    clean = kept(make_layer(dtype, constants), rows, what)
    for slot, value in odd.items():
        rows[slot] = 0.0
        rows[slot, :, ::3] = value
    oracle = make_layer(dtype, constants)
    expected = kept(oracle, rows, what)
    others = [slot for slot in range(64) if slot not in odd]
    assert torch.equal(expected[others], clean[others])
    assert expected[5, :, 0].isnan().all()
    assert expected[6, :, 0].isnan().all()
    assert (expected[3:5].abs() <= (0.8 if has_centres and dtype is KVDtype.INT4 else 1e-6)).all()
    if dtype is KVDtype.INT4:
        assert ((expected[7] - rows[7]).norm(dim=-1) <= 0.3 * rows[7].norm(dim=-1)).all()

    setup = Setup(num_heads=2, num_kv_heads=2, k_dtype=dtype, v_dtype=dtype)
    scene = Scene(setup, num_blocks=4)
    scene.kv = make_layer(dtype, constants)
    plan = scene.plan([(Sequence(torch.empty(0)), 64)])
    plan.slots = SLOTS
    values = rows.flatten(1)
    product = Product(torch.cat([values, values, values], dim=1))
    still = (torch.ones(64, 32), torch.zeros(64, 32))
    each_isa.qkv_write(product, setup.shape, None, still, [(scene.kv, plan)])
    (got,), (want,) = (scene.kv.k, oracle.k) if what == "k" else (scene.kv.v, oracle.v)
    is_same = (got == want).float().mean()
    # K passes RoPE, where infinity meets a sine of zero and signs of zeros change.
    assert is_same == 1.0 if dtype is KVDtype.FP8 and what == "v" else is_same > 0.97, "the format's bits"


def test_feedback_takes_errors_where_queries_do_not_look() -> None:
    """Queries in a few directions: the error of scores falls by far, while that of the keys themselves may grow."""
    generator = torch.Generator().manual_seed(3)
    spread = torch.randn(64, 64, generator=generator) * torch.logspace(0.5, -1.5, 64)[:, None]
    queries = torch.randn(500, 64, generator=generator) @ spread
    moment = (queries.T.double() @ queries.double()).expand(1, 2, 64, 64)
    rows = torch.randn(64, 2, 64, generator=generator)
    plain = kept(make_layer(KVDtype.INT4), rows, "k") - rows
    shaped = kept(make_layer(KVDtype.INT4, KVConstants(k_feedback=key_feedback(moment))), rows, "k") - rows

    def of_scores(error: Tensor) -> float:
        return (error @ queries.T).square().mean().item()

    assert of_scores(shaped) < 0.5 * of_scores(plain)


def test_constants_change_nothing_but_rounding(each_isa: CpuKernels, reference: ReferenceKernels) -> None:
    """Whatever the centres are, attention is that over the keys and values that the cache gives back: the constant
    that centring adds to every score of a query falls out of the softmax, and second centres are paid back."""
    setup = Setup(k_dtype=KVDtype.INT4, v_dtype=KVDtype.INT4)
    product = random_product(setup, 300)
    error = play(setup, each_isa, product, 64) - play(setup, reference, product, 64)
    exact = play(replace(setup, k_dtype=KVDtype.FP32, v_dtype=KVDtype.FP32), reference, product, 64)
    assert error.abs().max() <= 2e-2 * exact.abs().max()


def test_a_missing_fp8_scale_is_refused_never_one() -> None:
    layout = make_layout(KVDtype.FP8, KVDtype.FP8)
    with pytest.raises(
        ConfigError, match=r"fp8 K needs calibrated scales.*2 \(layer, KV head\) pairs.*kvasir calibrate"
    ):
        KVStore(layout, (4,))
    given = made_up_constants(1, 2, 64)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        scale = torch.tensor([[0.1, bad]])
        with pytest.raises(ConfigError, match=r"fp8 V needs calibrated scales.*of 1 \(layer"):
            KVStore(layout, (4,), replace(given, v_scale=scale))
    with pytest.raises(ConfigError, match=r"k_scale has shape \[1, 3\], but this model needs \[1, 2\]"):
        KVStore(layout, (4,), replace(given, k_scale=torch.ones(1, 3)))
    KVStore(layout, (4,), given)


@pytest.mark.parametrize("head_dim", [40, 72, 80])
def test_head_sizes_int4_cannot_take_are_refused(head_dim: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"int4.*multiples of 32.*{head_dim} channels; use fp32, bf16, fp16, int8, fp8"
    ):
        make_layout(KVDtype.BF16, KVDtype.INT4, head_dim)


def test_the_digest_names_the_constants_that_are_used() -> None:
    constants, others = made_up_constants(1, 2, 64), made_up_constants(1, 2, 64, seed=1)
    digests = set()
    for k_dtype, v_dtype in ((KVDtype.INT4, KVDtype.INT4), (KVDtype.FP8, KVDtype.FP8), (KVDtype.FP8, KVDtype.INT4)):
        layout = make_layout(k_dtype, v_dtype)
        digests |= {layout.digest}
        digests |= {replace(layout, constants_digest=c.digest(layout)).digest for c in (constants, others)}
    assert len(digests) == 9
    assert constants.digest(make_layout(KVDtype.BF16, KVDtype.INT8)) == ""
    assert KVConstants().digest(make_layout(KVDtype.INT4, KVDtype.INT4)) == ""
    one = make_layout(KVDtype.INT4, KVDtype.BF16)
    assert constants.digest(one) == replace(constants, v_sink=None, k_scale=None).digest(one)


def test_rope_comes_first(each_isa: CpuKernels, reference: ReferenceKernels) -> None:
    """K is centred after RoPE: a token's codes depend on its position."""
    setup = Setup(num_heads=2, num_kv_heads=2, k_dtype=KVDtype.INT4, v_dtype=KVDtype.INT4)
    row = torch.randn(1, setup.width, generator=torch.Generator().manual_seed(4)).expand(32, -1).contiguous()
    for kernels in (each_isa, reference):
        scene = Scene(setup, num_blocks=2)
        plan = scene.plan([(Sequence(torch.empty(0)), 32)])
        kernels.qkv_write(Product(row), setup.shape, None, rope(torch.arange(32), 64), [(scene.kv, plan)])
        k = FORMATS[KVDtype.INT4].decode_k(scene.kv, plan.block_table[0].long())
        v = FORMATS[KVDtype.INT4].decode_v(scene.kv, plan.block_table[0].long())
        assert (k[:, 0] != k[:, 9]).any()
        assert torch.equal(v[:, 0], v[:, 9])
