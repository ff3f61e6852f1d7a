"""Sparse reading: bounds that bound, the choice of blocks, and attention over exactly what was chosen."""

import numpy as np
import pytest
import torch
from head_constants import made_up_constants

from kvasir.core.step import StepRow, TableUpdate
from kvasir.engine.inputs import BlockTables, make_inputs
from kvasir.formats.key_bounds import bound_blocks
from kvasir.formats.registry import FORMATS
from kvasir.formats.store import KVStore
from kvasir.kernels import sparse
from kvasir.kernels.interface import Kernels, LayerKV
from kvasir.kernels.reference import ReferenceKernels
from kvasir.kv.format_spec import KVDtype
from kvasir.kv.head_group import HeadGroup
from kvasir.kv.layout import KVGeometry, KVLayout
from kvasir.kv.sparse_read import SparseRead

NUM_BLOCKS, SIZE = 40, 16


def filled(dtype: KVDtype, *, num_heads: int = 3, dim: int = 64, heads: tuple[int, ...] | None = None):
    """A store of one layer with random tokens everywhere and all blocks bounded."""
    geometry = KVGeometry(num_layers=1, num_kv_heads=num_heads, head_dim=dim, sliding_windows=(None,))
    groups = None
    if heads is not None:
        rest = tuple(head for head in range(num_heads) if head not in heads)
        groups = tuple(
            HeadGroup(heads=tuple((0, head) for head in part), k_dtype=kind, v_dtype=kind)
            for part, kind in ((heads, dtype), (rest, KVDtype.FP32))
        )
    layout = KVLayout.from_geometry(
        geometry, block_size=SIZE, k_dtype=dtype, v_dtype=dtype, head_groups=groups, has_bounds=True
    )
    constants = made_up_constants(1, num_heads, dim) if dtype in (KVDtype.INT4, KVDtype.FP8) else None
    store = KVStore(layout, (NUM_BLOCKS,) * len(layout.groups), constants)
    generator = torch.Generator().manual_seed(3)
    slots = torch.arange(NUM_BLOCKS * SIZE)
    for _, kv in store.layers[0]:
        num = len(kv.heads)
        common = 2.0 * torch.randn(1, num, dim, generator=generator)
        keys = common + torch.randn(len(slots), num, dim, generator=generator)
        FORMATS[kv.k_dtype].encode_k(kv, slots, keys)
        FORMATS[kv.v_dtype].encode_v(kv, slots, torch.randn(len(slots), num, dim, generator=generator))
        bound_blocks(kv, torch.arange(NUM_BLOCKS))
    return store


def only(store: KVStore) -> LayerKV:
    ((_, kv),) = store.layers[0]
    return kv


def scene(num_rows: int = 4, seed: int = 0):
    """Shuffled block tables [R, W] and block counts [R]."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.stack([torch.randperm(NUM_BLOCKS, generator=generator)[:30] for _ in range(num_rows)]).int()
    return table, torch.tensor([30, 9, 17, 22][:num_rows], dtype=torch.int32)


@pytest.mark.parametrize("dtype", list(KVDtype), ids=lambda dtype: dtype.value)
def test_bounds_are_above_and_below_every_key_as_it_is_read(dtype):
    kv = only(filled(dtype))
    assert kv.bounds is not None
    keys = FORMATS[dtype].decode_k(kv, torch.arange(NUM_BLOCKS)).unflatten(1, (NUM_BLOCKS, SIZE))
    least, largest = kv.bounds.tensor.float().unbind(2)
    assert (keys >= least.transpose(0, 1)[:, :, None]).all()
    assert (keys <= largest.transpose(0, 1)[:, :, None]).all()
    slack = largest.transpose(0, 1) - keys.amax(dim=2)
    assert (slack <= keys.abs().amax() * 2**-7).all(), "and next to the keys"


@pytest.mark.parametrize(("num_heads", "group", "dim"), [(3, 3, 64), (1, 8, 16), (2, 1, 40), (2, 5, 128)])
def test_the_choice_is_the_contract_s(each_isa: Kernels, num_heads, group, dim):
    kv = only(filled(KVDtype.FP32, num_heads=num_heads, dim=dim))
    assert kv.bounds is not None
    table, counts = scene()
    q = torch.randn(4, num_heads, group, dim, generator=torch.Generator().manual_seed(1))
    for limit in (2, 3, 8):
        out, expected = (torch.full((4 * num_heads, limit), -1, dtype=torch.int32) for _ in range(2))
        each_isa.select_blocks(q, kv.bounds.tensor, table, counts, out)
        ReferenceKernels().select_blocks(q, kv.bounds.tensor, table, counts, expected)
        assert torch.equal(out, expected)
        chosen = out.view(4, num_heads, limit)
        for head in range(num_heads):
            assert torch.equal(chosen[:, head, 0], table[:, 0] * num_heads + head)
            last = table[torch.arange(4), counts.long() - 1]
            assert torch.equal(chosen[:, head, -1], last * num_heads + head)


def test_ties_go_to_the_older_block_and_what_is_no_number_is_read(each_isa: Kernels):
    kv = only(filled(KVDtype.FP32, num_heads=1, dim=16))
    assert kv.bounds is not None
    kv.bounds.tensor.fill_(1.0)
    table, counts = torch.arange(10, dtype=torch.int32)[None], torch.tensor([10], dtype=torch.int32)
    out = torch.empty(1, 4, dtype=torch.int32)
    q = torch.ones(1, 1, 2, 16)
    each_isa.select_blocks(q, kv.bounds.tensor, table, counts, out)
    assert out.tolist() == [[0, 1, 2, 9]]
    kv.bounds.tensor[7, 0, 1, 3] = float("nan")
    kv.bounds.tensor[5] = 2.0
    each_isa.select_blocks(q, kv.bounds.tensor, table, counts, out)
    assert out.tolist() == [[0, 5, 7, 9]]


def test_what_cannot_be_chosen_is_refused(cpu):
    kv = only(filled(KVDtype.FP32))
    assert kv.bounds is not None
    table, counts = scene()
    q = torch.zeros(4, 3, 3, 64)
    with pytest.raises(ValueError, match="cannot be chosen"):
        cpu.select_blocks(q, kv.bounds.tensor, table, counts, torch.empty(12, 20, dtype=torch.int32))
    table[2, 4] = NUM_BLOCKS
    with pytest.raises(ValueError, match="not in the store"):
        cpu.select_blocks(q, kv.bounds.tensor, table, counts, torch.empty(12, 4, dtype=torch.int32))


def step_of(store: KVStore, limit: int):
    """A step of four rows: a decode that reads sparsely, one that sees too little for it, a prefill chunk, and a row
    whose prompt ends inside it (as after a preemption)."""
    tables = BlockTables(len(store.layout.groups), 4, 30)
    table, _ = scene()
    rows = []
    for line, (position, length, num_prompt) in enumerate([(470, 1, 300), (40, 1, 30), (200, 37, 400), (160, 60, 180)]):
        tables.start(line, num_prompt)
        updates = tuple(TableUpdate(g, 0, tuple(table[line].tolist())) for g in range(len(store.layout.groups)))
        tables.update(line, updates)
        rows.append(StepRow(line, position, (0,) * length))
    return rows, make_inputs(rows, tables, store.layout, SparseRead(num_blocks=limit))


@pytest.mark.parametrize("heads", [None, (2, 0)], ids=["all heads", "some heads"])
@pytest.mark.parametrize("dtype", list(KVDtype), ids=lambda dtype: dtype.value)
def test_attention_is_over_what_was_chosen(each_isa: Kernels, dtype, heads):
    limit, scale = 6, 0.2
    store = filled(dtype, heads=heads)
    rows, inputs = step_of(store, limit)
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(len(inputs.token_ids), 9, 64, generator=generator)
    out = torch.full_like(q, float("nan"))
    for group_id, kv in store.layers[0]:
        sparse.attend(each_isa, q, kv, inputs.plans[group_id], scale, out)
    assert inputs.plans[0].sparse is not None
    num_sparse = 0
    token = 0
    for line, row in enumerate(rows):
        num_prompt = [300, 30, 400, 180][line]
        for position in range(row.position, row.position + len(row.token_ids)):
            for group_id, kv in store.layers[0]:
                table = inputs.plans[group_id].block_table[line, : position // SIZE + 1].long()
                num_sparse += _check_token(
                    q[token], kv, table, position, position >= num_prompt, limit, scale, out[token]
                )
            token += 1
    assert num_sparse > 40


def _check_token(q, kv, table, position, is_after_prompt, limit, scale, found) -> int:
    """Against dense attention in fp64 with the blocks that are not chosen masked; 1 where any is."""
    is_sparse = is_after_prompt and len(table) > limit
    keys = FORMATS[kv.k_dtype].decode_k(kv, table)[:, : position + 1].double()
    values = FORMATS[kv.v_dtype].decode_v(kv, table)[:, : position + 1].double()
    for index, head in enumerate(kv.heads.tolist()):
        queries = q[head * 3 : head * 3 + 3].double()
        is_seen = torch.ones(position + 1, dtype=torch.bool)
        if is_sparse:
            least, largest = kv.bounds.tensor[table, index].double().unbind(1)
            bounds = torch.maximum(queries[:, None] * least, queries[:, None] * largest).sum(dim=2).amax(dim=0)
            bounds[[0, -1]] = float("inf")
            chosen = bounds.argsort(descending=True, stable=True)[:limit]
            is_seen = torch.isin(torch.arange(position + 1) // SIZE, chosen)
        scores = (queries @ keys[index].T * scale).masked_fill(~is_seen, float("-inf"))
        expected = torch.softmax(scores, dim=-1) @ values[index]
        tolerance = (
            0.1 if kv.k_dtype in (KVDtype.INT8, KVDtype.INT4) else 1e-5
        )  # its queries are codes too; a wrong block is off by more
        assert torch.allclose(found[head * 3 : head * 3 + 3].double(), expected, atol=tolerance), (position, head)
    return int(is_sparse)


def test_full_blocks_are_named_once():
    store = filled(KVDtype.FP32)
    rows, inputs = step_of(store, 6)
    (plan,) = inputs.plans
    ends = [
        plan.block_table[line, position // SIZE].item()
        for line, row in enumerate(rows)
        for position in range(row.position, row.position + len(row.token_ids))
        if position % SIZE == SIZE - 1
    ]
    assert plan.sealed is not None and plan.sealed.tolist() == ends
    assert np.array_equal(plan.slots.numpy() // SIZE, np.asarray(plan.slots) // SIZE)


def test_bytes_are_the_spec_s_and_bounds_are_copied_with_their_blocks():
    store = filled(KVDtype.BF16)
    kv = only(store)
    assert kv.bounds is not None
    (spec,) = store.layout.groups
    assert store.num_bytes == NUM_BLOCKS * spec.block_bytes == sum(t.nbytes for t in store.group_tensors(0))
    assert spec.block_bytes == 3 * (2 * 2 * 64 * SIZE + 2 * 2 * 64), "two vectors of 16 bits a block: 1/16 of K and V"
    before = kv.bounds.tensor[4].clone()
    store.copy(0, torch.tensor([4]), torch.tensor([9]), ReferenceKernels())
    assert torch.equal(kv.bounds.tensor[9], before)
