"""Moving encoded tokens: bit for bit in every format, and nothing else moves."""

import pytest
import torch
from head_constants import made_up_constants

from kvasir.formats.registry import FORMATS
from kvasir.formats.slot_bytes import SlotBytes
from kvasir.formats.store import KVStore
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.layout import KVGeometry, KVLayout

HEADS, DIM, BLOCKS = 3, 64, 6
PAIRS = [(dtype, dtype) for dtype in KVDtype] + [(a, b) for a, b in zip(KVDtype, list(KVDtype)[1:], strict=False)]


def filled(k_dtype: KVDtype, v_dtype: KVDtype, block_size: int):
    """One layer's store with random tokens in all slots."""
    geometry = KVGeometry(num_layers=1, num_kv_heads=HEADS, head_dim=DIM, sliding_windows=(None,))
    layout = KVLayout.from_geometry(geometry, block_size=block_size, k_dtype=k_dtype, v_dtype=v_dtype)
    ((_, kv),) = KVStore(layout, (BLOCKS,), made_up_constants(1, HEADS, DIM)).layers[0]
    generator = torch.Generator().manual_seed(1)
    slots = torch.arange(BLOCKS * block_size)
    FORMATS[k_dtype].encode_k(kv, slots, torch.randn(len(slots), HEADS, DIM, generator=generator))
    FORMATS[v_dtype].encode_v(kv, slots, torch.randn(len(slots), HEADS, DIM, generator=generator))
    return kv


def read(kv):
    """K and V fp32 [h, all slots, D]."""
    blocks = torch.arange(BLOCKS)
    return FORMATS[kv.k_dtype].decode_k(kv, blocks), FORMATS[kv.v_dtype].decode_v(kv, blocks)


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize(("k_dtype", "v_dtype"), PAIRS, ids=lambda dtype: dtype.value)
def test_tokens_read_the_same_after_a_move(k_dtype, v_dtype, block_size):
    kv = filled(k_dtype, v_dtype, block_size)
    before = read(kv)
    num = 2 * block_size + 5
    generator = torch.Generator().manual_seed(2)
    # From blocks 0 to 4, each head others, into blocks 3, 5 and 1: targets are sources too.
    sources = torch.stack(
        [torch.randperm(5 * block_size, generator=generator)[:num].sort().values for _ in range(HEADS)]
    )
    places = torch.arange(num)
    targets = torch.tensor([3, 5, 1])[places // block_size] * block_size + places % block_size
    SlotBytes(kv, block_size, DIM).move((*kv.k, *kv.v), sources, targets)
    rest = torch.tensor(sorted(set(range(BLOCKS * block_size)) - set(targets.tolist())))
    for was, now in zip(before, read(kv), strict=True):
        for head in range(HEADS):
            assert torch.equal(now[head, targets], was[head, sources[head]])
        assert torch.equal(now[:, rest], was[:, rest])


@pytest.mark.parametrize("dtype", list(KVDtype), ids=lambda dtype: dtype.value)
def test_every_byte_of_a_tile_is_some_tokens(dtype):
    kv = filled(dtype, dtype, 16)
    found = SlotBytes(kv, 16, DIM)
    for words, width, tensor in zip(found.words, found.dtypes, (*kv.k, *kv.v), strict=True):
        num_bytes = tensor[0, 0].nbytes
        assert sorted(words.flatten().tolist()) == list(range(num_bytes // width.itemsize))


def test_a_format_that_packs_two_tokens_in_a_byte_is_refused(monkeypatch):
    class Packed:
        def encode_k(self, kv, slots, rows):
            kv.k[0][:, :, :, slots // 2 * 2] = rows.to(kv.k[0].dtype)[:, :, :, None][:1].sum()

        encode_v = FORMATS[KVDtype.BF16].encode_v

    kv = filled(KVDtype.BF16, KVDtype.BF16, 16)
    monkeypatch.setitem(FORMATS, KVDtype.BF16, Packed())
    with pytest.raises(ValueError, match="no token apart"):
        SlotBytes(kv, 16, DIM)
