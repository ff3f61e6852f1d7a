"""What the compiled kernels refuse, and how the implementation is chosen."""

import pytest
import torch

from kvasir.core.errors import ConfigError
from kvasir.engine.config import KernelChoice
from kvasir.formats.store import KVStore
from kvasir.kernels.cpu.kernels import CpuKernels
from kvasir.kernels.interface import AttentionPlan, HeadShape, LayerKV, Product, RowStyle
from kvasir.kernels.reference import ReferenceKernels
from kvasir.kernels.rotation import hadamard, rotation_size
from kvasir.kernels.select import make_kernels
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.retention import FULL


@pytest.fixture
def kernels() -> CpuKernels:
    return CpuKernels(1)


@pytest.fixture
def layer() -> LayerKV:
    geometry = KVGeometry(num_layers=1, num_kv_heads=2, head_dim=32, sliding_windows=(None,))
    layout = KVLayout.from_geometry(geometry, block_size=16, k_dtype=KVDtype.FP32, v_dtype=KVDtype.FP32)
    return KVStore(layout, (4,)).layers[0][0][1]


def make_plan(table: list[int], num_tokens: int = 20, slots: list[int] | None = None) -> AttentionPlan:
    return AttentionPlan(
        query_start=torch.tensor([0, num_tokens], dtype=torch.int32),
        first_position=torch.zeros(1, dtype=torch.int32),
        block_table=torch.tensor([table], dtype=torch.int32),
        slots=torch.tensor(slots or list(range(num_tokens))),
        block_size=16,
        retention=FULL,
    )


def test_the_choice_is_kept() -> None:
    before = torch.get_num_threads()
    try:
        assert isinstance(make_kernels(KernelChoice.CPU, 2), CpuKernels)
        assert isinstance(make_kernels(KernelChoice.AUTO, 1), CpuKernels)
        assert torch.get_num_threads() == 1
        assert isinstance(make_kernels(KernelChoice.REFERENCE, 2), ReferenceKernels)
        assert torch.get_num_threads() == 2
        with pytest.raises(ConfigError, match="at least 1 thread, got 0"):
            make_kernels(KernelChoice.AUTO, 0)
    finally:
        torch.set_num_threads(before)


def test_the_environment_names_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_ISA", "plain")
    assert CpuKernels(1).isa == "plain"
    monkeypatch.setenv("KVASIR_ISA", "mmx")
    with pytest.raises(ValueError, match=r"'mmx' do not run on this machine; it has .*plain"):
        CpuKernels(1)


def test_threads_are_shared_with_torch_unless_asked_otherwise() -> None:
    assert not CpuKernels(1).shares_torch_threads
    assert not CpuKernels(2, own_threads=True).shares_torch_threads
    if "OpenMP" in torch.__config__.parallel_info().split("ATen parallel backend:")[1]:
        assert CpuKernels(2, own_threads=False).shares_torch_threads


@pytest.mark.parametrize(
    ("x", "weight", "style", "words"),
    [
        (torch.zeros(2, 8, dtype=torch.float64), torch.ones(8), RowStyle(False), "float64"),
        (torch.zeros(8, 2).T, torch.ones(8), RowStyle(False), "non-contiguous"),
        (torch.zeros(2, 8), torch.ones(7), RowStyle(False), r"shape \[8\].*shape \[7\]"),
        (torch.zeros(2, 12), torch.ones(12), RowStyle(True, 8), "divides the row length 12, not 8"),
        (torch.zeros(2, 12), torch.ones(12), RowStyle(True, 6), "power of two"),
    ],
)
def test_bad_rows_are_refused(
    kernels: CpuKernels, x: torch.Tensor, weight: torch.Tensor, style: RowStyle, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        kernels.norm_rows(x, weight, 1e-5, style)


@pytest.mark.parametrize(
    ("product", "words"),
    [
        (Product(torch.zeros(2, 8, dtype=torch.int32)), "without scales.*int32"),
        (Product(torch.zeros(2, 8), torch.ones(2), torch.ones(8)), "with scales.*float32"),
        (Product(torch.zeros(2, 8, dtype=torch.int32), torch.ones(2)), "or neither"),
        (Product(torch.zeros(3, 8)), r"shape \[2, 8\]"),
        (Product(torch.zeros(2, 8), bias=torch.ones(2)), "bias"),
    ],
)
def test_bad_products_are_refused_before_the_residual_changes(
    kernels: CpuKernels, product: Product, words: str
) -> None:
    residual = torch.ones(2, 8)
    with pytest.raises(ValueError, match=words):
        kernels.add_product(residual, product)
    assert (residual == 1).all()


def test_a_slot_outside_the_store_is_refused_before_anything_is_written(kernels: CpuKernels, layer: LayerKV) -> None:
    rope = (torch.ones(2, 16), torch.zeros(2, 16))
    plan = make_plan([0], 2, slots=[3, 64])
    with pytest.raises(ValueError, match="slot 64 is outside the store, which has 64"):
        kernels.qkv_write(Product(torch.ones(2, 256)), HeadShape(4, 2, 32), None, rope, [(layer, plan)])
    assert not layer.k[0].any()


def test_targets_must_cover_the_heads(kernels: CpuKernels, layer: LayerKV) -> None:
    rope = (torch.ones(2, 16), torch.zeros(2, 16))
    with pytest.raises(ValueError, match="each of the 3 KV heads once"):
        kernels.qkv_write(Product(torch.ones(2, 320)), HeadShape(4, 3, 32), None, rope, [(layer, make_plan([0], 2))])


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([0, -1], "sees block 1 of its table, which holds -1; the store has blocks 0 to 3"),
        ([4, 1], "holds 4"),
        ([0], "up to position 19, but its block table has 1 blocks of 16 tokens"),
    ],
)
def test_a_table_that_misses_a_visible_block_is_refused(
    kernels: CpuKernels, layer: LayerKV, table: list[int], words: str
) -> None:
    q = torch.zeros(20, 4, 32)
    with pytest.raises(ValueError, match=words):
        kernels.attend(q, layer, make_plan(table), 1.0, torch.empty_like(q))


def test_queries_that_do_not_fit_the_plan_are_refused(kernels: CpuKernels, layer: LayerKV) -> None:
    q = torch.zeros(19, 4, 32)
    with pytest.raises(ValueError, match=r"q must be .* \[20, 4, 32\].*\[19, 4, 32\]"):
        kernels.attend(q, layer, make_plan([0, 1]), 1.0, torch.empty_like(q))
    q = torch.zeros(20, 3, 32)
    with pytest.raises(ValueError, match="3 query heads cannot share 2 KV heads evenly"):
        kernels.attend(q, layer, make_plan([0, 1]), 1.0, torch.empty_like(q))


def test_copies_outside_the_store_are_refused(kernels: CpuKernels, layer: LayerKV) -> None:
    with pytest.raises(ValueError, match="target block 4 is outside the store, which has 4"):
        kernels.copy_blocks(layer.k, torch.tensor([0]), torch.tensor([4]))


def test_nothing_to_do_is_no_error(kernels: CpuKernels, layer: LayerKV) -> None:
    kernels.copy_blocks(layer.k, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    empty = torch.empty(0, 8)
    assert kernels.norm_rows(empty, torch.ones(8), 1e-5, RowStyle(True)).data.shape == (0, 8)
    plan = AttentionPlan(
        query_start=torch.zeros(1, dtype=torch.int32),
        first_position=torch.empty(0, dtype=torch.int32),
        block_table=torch.empty(0, 0, dtype=torch.int32),
        slots=torch.empty(0, dtype=torch.int64),
        block_size=16,
        retention=FULL,
    )
    q = torch.empty(0, 4, 32)
    kernels.attend(q, layer, plan, 1.0, q)


def test_hadamard_is_orthonormal_and_symmetric() -> None:
    for size in (1, 2, 64, 512):
        matrix = hadamard(size)
        assert torch.allclose(matrix @ matrix, torch.eye(size, dtype=torch.float64))
        assert torch.equal(matrix, matrix.T)
    with pytest.raises(ValueError, match="power of two, got 48"):
        hadamard(48)


@pytest.mark.parametrize(("length", "expected"), [(576, 64), (1536, 512), (4096, 512), (7, 1), (96, 32)])
def test_rotation_size(length: int, expected: int) -> None:
    assert rotation_size(length) == expected
