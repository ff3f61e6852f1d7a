"""The store: bytes as predicted, zeroed, huge-page aligned, and formats that keep what they are given."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from head_constants import made_up_constants

from kvasir.formats.arena import HUGE_PAGE_BYTES, Arena
from kvasir.formats.registry import FORMATS
from kvasir.formats.store import KVStore
from kvasir.kernels.interface import Kernels
from kvasir.kernels.reference import ReferenceKernels
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout

GEOMETRY = KVGeometry(num_layers=4, num_kv_heads=3, head_dim=64, sliding_windows=(None, 100, None, 40))


def make_layout(k_dtype: KVDtype, v_dtype: KVDtype, block_size: int = 16) -> KVLayout:
    return KVLayout.from_geometry(GEOMETRY, block_size=block_size, k_dtype=k_dtype, v_dtype=v_dtype)


@pytest.mark.parametrize("k_dtype", list(KVDtype))
@pytest.mark.parametrize("v_dtype", list(KVDtype))
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_allocated_bytes_are_the_spec_s_bytes(k_dtype: KVDtype, v_dtype: KVDtype, block_size: int) -> None:
    layout = make_layout(k_dtype, v_dtype, block_size)
    store = KVStore(layout, (7, 5, 3), made_up_constants(4, 3, 64))
    predicted = sum(spec.pool_bytes(count) for spec, count in zip(layout.groups, (7, 5, 3), strict=True))
    tensors = [tensor for group_id in range(3) for tensor in store.group_tensors(group_id)]
    assert store.num_bytes == predicted == sum(tensor.nbytes for tensor in tensors)
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors)
    assert all(end == start for (_, end), (start, _) in pairwise(spans)), "packed, no overlap"


def test_layers_name_their_group_heads_and_shapes() -> None:
    store = KVStore(make_layout(KVDtype.BF16, KVDtype.FP16), (7, 5, 3))
    assert [[group_id for group_id, _ in entries] for entries in store.layers] == [[0], [1], [0], [2]]
    for entries, num_blocks in zip(store.layers, (7, 5, 7, 3), strict=True):
        (_, kv), *others = entries
        assert not others
        assert kv.heads.tolist() == [0, 1, 2]
        assert kv.num_kv_heads == 3
        (k,), (v,) = kv.k, kv.v
        assert (k.shape, k.dtype) == ((num_blocks, 3, 64, 16), torch.bfloat16)
        assert (v.shape, v.dtype) == ((num_blocks, 3, 16, 64), torch.float16)
        assert not k.any()
        assert not v.any()
        assert k.is_contiguous()
        assert v.is_contiguous()


def test_memory_starts_on_a_huge_page_and_outlives_the_store() -> None:
    store = KVStore(make_layout(KVDtype.FP32, KVDtype.FP32), (40, 2, 2))
    tensor = store.group_tensors(0)[0]
    assert tensor.data_ptr() % HUGE_PAGE_BYTES == 0
    tensor.fill_(1.5)
    del store
    assert (tensor == 1.5).all()


def test_an_arena_refuses_what_does_not_fit() -> None:
    arena = Arena(64)
    arena.cut((8,), torch.float32)
    with pytest.raises(ValueError, match="36 bytes do not fit behind 32 of 64"):
        arena.cut((9,), torch.float32)


@pytest.mark.parametrize("num_blocks", [(1, 1), (1, 1, 0)])
def test_a_store_refuses_bad_block_counts(num_blocks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="block"):
        KVStore(make_layout(KVDtype.FP32, KVDtype.FP32), num_blocks)


@pytest.mark.parametrize("dtype", sorted({*KVDtype} - {KVDtype.INT4, KVDtype.FP8}, key=str))
@pytest.mark.parametrize("block_size", [16, 64])
def test_a_format_keeps_each_token_in_its_slot(dtype: KVDtype, block_size: int) -> None:
    store = KVStore(make_layout(dtype, dtype, block_size), (6, 1, 1))
    kv, format_ = store.layers[0][0][1], FORMATS[dtype]
    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm(6 * block_size, generator=generator)[:50]
    k, v = torch.randn(2, 50, 3, 64, generator=generator)
    for start in (0, 20):  # in two calls: what a token becomes does not depend on its mates
        part = slice(start, start + (20 if start == 0 else 30))
        format_.encode_k(kv, slots[part], k[part])
        format_.encode_v(kv, slots[part], v[part])
    blocks = torch.tensor([3, 0, 5, 1, 4, 2])
    place = torch.argsort(blocks)[slots // block_size] * block_size + slots % block_size
    bound = {KVDtype.FP32: 0.0, KVDtype.BF16: 2.0**-8, KVDtype.FP16: 2.0**-11, KVDtype.INT8: 1 / 253}[dtype]
    for rows, decoded in ((k, format_.decode_k(kv, blocks)), (v, format_.decode_v(kv, blocks))):
        got = decoded[:, place].transpose(0, 1)
        size = rows.abs().amax(dim=-1, keepdim=True) if dtype is KVDtype.INT8 else rows.abs()
        assert ((got - rows).abs() <= bound * size).all()
        decoded[:, place] = 0.0
        assert not decoded.any(), "other slots stay zero"


def test_int8_is_about_half_of_sixteen_bits() -> None:
    half, whole = (make_layout(dtype, dtype).bytes_per_token for dtype in (KVDtype.INT8, KVDtype.BF16))
    assert half / whole == 136 / 256 <= 0.54


ODD_ROWS = {
    "zeros": (torch.zeros(64), 0.0),
    "tiny": (torch.full((64,), 2.0**-117), 0.0),
    "nan": (torch.ones(64).index_fill(0, torch.tensor([9]), float("nan")), float("nan")),
    "inf": (torch.ones(64).index_fill(0, torch.tensor([63]), float("-inf")), float("nan")),
    "huge": (torch.full((64,), -3.4e38), 3.4e38 / 127),
}


@pytest.mark.parametrize(("row", "scale"), ODD_ROWS.values(), ids=ODD_ROWS)
def test_int8_of_odd_rows(row: torch.Tensor, scale: float) -> None:
    """Nothing to tell apart becomes zeros; what is not finite reads as NaN, whole; the largest value keeps its size."""
    format_ = FORMATS[KVDtype.INT8]
    kv = KVStore(make_layout(KVDtype.INT8, KVDtype.INT8), (1, 1, 1)).layers[0][0][1]
    rows = torch.stack([torch.ones(64), row, torch.ones(64)])[:, None].expand(3, 3, 64).contiguous()
    format_.encode_k(kv, torch.arange(3), rows)
    format_.encode_v(kv, torch.arange(3), rows)
    for decoded in (format_.decode_k(kv, torch.tensor([0])), format_.decode_v(kv, torch.tensor([0]))):
        assert torch.allclose(decoded[:, 0], torch.ones(3, 64))
        assert torch.allclose(decoded[:, 2], torch.ones(3, 64))
        expected = torch.full((64,), float("nan")) if scale != scale else row if scale else torch.zeros(64)
        assert torch.allclose(decoded[:, 1], expected.expand(3, 64), equal_nan=True)


def test_copy_reaches_every_layer_of_one_group(cpu: Kernels, reference: ReferenceKernels) -> None:
    for kernels in (cpu, reference):
        store = KVStore(make_layout(KVDtype.FP32, KVDtype.BF16), (7, 5, 3))
        for group_id in range(3):
            for tensor in store.group_tensors(group_id):
                tensor.copy_(torch.arange(tensor.shape[0])[:, None, None, None].expand_as(tensor) + 10 * group_id)
        store.copy(1, torch.tensor([4, 2]), torch.tensor([0, 3]), kernels)
        assert all(t[:, 0, 0, 0].tolist() == [14, 11, 12, 12, 14] for t in store.group_tensors(1))
        assert all(t[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6] for t in store.group_tensors(0))
        assert len(store.group_tensors(0)) == 4


def test_the_pool_is_backed_by_huge_pages() -> None:
    switch = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not switch.exists() or "[never]" in switch.read_text():
        pytest.skip("this system has no transparent huge pages")
    size = 8 * HUGE_PAGE_BYTES
    span = Arena(size).cut((size,), torch.uint8)
    span.fill_(1)
    assert huge_bytes_at(span.data_ptr()) >= HUGE_PAGE_BYTES, "asked for, and none came"


def huge_bytes_at(address: int) -> int:
    """Bytes on huge pages in this process's mapping around ``address``."""
    is_around = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_around = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif is_around and line.startswith("AnonHugePages"):
            return int(line.split()[1]) << 10
    return 0
