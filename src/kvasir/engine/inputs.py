"""A step plan as the tensors of one forward pass: token ids, positions, slots, block tables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir.core.errors import InvariantViolation
from kvasir.core.step import StepRow, TableUpdate
from kvasir.kernels.interface import AttentionPlan
from kvasir.kernels.sparse import SparseStep
from kvasir.kv.layout import KVLayout
from kvasir.kv.sparse_read import SparseRead

_NO_BLOCK = -1


class BlockTables:
    """The executor's block tables: per group an int32 array [max_num_seqs, max_blocks], one line per known sequence.

    Kept from step to step, so that a step that changes nothing copies no table from the scheduler.
    """

    def __init__(self, num_groups: int, max_num_seqs: int, max_blocks: int) -> None:
        self._tables = [np.full((max_num_seqs, max_blocks), _NO_BLOCK, dtype=np.int32) for _ in range(num_groups)]
        self.num_prompt = np.zeros(max_num_seqs, dtype=np.int64)
        """Prompt tokens of each line's sequence."""
        self._line_of: dict[int, int] = {}
        self._free = list(range(max_num_seqs - 1, -1, -1))

    def start(self, sequence_id: int, num_prompt_tokens: int) -> None:
        if sequence_id in self._line_of or not self._free:
            raise InvariantViolation(f"sequence {sequence_id} is known already, or there is no table left for it")
        line = self._free.pop()
        self._line_of[sequence_id] = line
        self.num_prompt[line] = num_prompt_tokens
        for table in self._tables:
            table[line] = _NO_BLOCK

    def end(self, sequence_id: int) -> None:
        line = self._line_of.pop(sequence_id, None)
        if line is None:
            raise InvariantViolation(f"sequence {sequence_id} ended, but it has no block table")
        self._free.append(line)

    def update(self, sequence_id: int, updates: Sequence[TableUpdate]) -> None:
        line = self._line_of[sequence_id]
        for group_id, first_index, block_ids in updates:
            self._tables[group_id][line, first_index : first_index + len(block_ids)] = block_ids

    def lines(self, rows: Sequence[StepRow]) -> NDArray[np.int64]:
        """Where in the tables each row's sequence is."""
        return np.fromiter((self._line_of[row.sequence_id] for row in rows), dtype=np.int64, count=len(rows))

    def group(self, group_id: int) -> NDArray[np.int32]:
        return self._tables[group_id]


@dataclass(slots=True, kw_only=True)
class StepInputs:
    """Arguments of ``Decoder.forward``.  ``last_of_row`` int64 [R] is each row's last token among the T of the step."""

    token_ids: Tensor
    positions: Tensor
    plans: tuple[AttentionPlan, ...]
    last_of_row: NDArray[np.int64]


def make_inputs(
    rows: Sequence[StepRow], tables: BlockTables, layout: KVLayout, sparse_read: SparseRead | None = None
) -> StepInputs:
    """The tensors of ``rows``, whose table updates are in ``tables`` already; no Python work per token."""
    first = np.fromiter((row.position for row in rows), dtype=np.int64, count=len(rows))
    lengths = np.fromiter((len(row.token_ids) for row in rows), dtype=np.int64, count=len(rows))
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    num_tokens = int(starts[-1])
    token_ids = np.fromiter(chain.from_iterable(row.token_ids for row in rows), dtype=np.int64, count=num_tokens)
    row_of_token = np.repeat(np.arange(len(rows)), lengths)
    positions = np.arange(num_tokens) + (first - starts[:-1])[row_of_token]

    block_size = layout.block_size
    num_evicted = np.fromiter((row.num_evicted for row in rows), dtype=np.int64, count=len(rows))
    first_slot = first - num_evicted
    block_index, offset = np.divmod(positions - num_evicted[row_of_token], block_size)
    num_entries = int((first_slot + lengths - 1).max()) // block_size + 1
    lines = tables.lines(rows)
    query_start = torch.from_numpy(starts.astype(np.int32))
    # Keys carry their positions since RoPE: attention only has to know how many of them there are.
    first_position = torch.from_numpy(first_slot.astype(np.int32))
    plans = []
    for group_id, spec in enumerate(layout.groups):
        block_table = tables.group(group_id)[lines, :num_entries]
        block_ids = block_table[row_of_token, block_index].astype(np.int64)
        if block_ids.min() < 0:
            raise InvariantViolation(f"a token of the step has no block in group {group_id} to be written to")
        plan = AttentionPlan(
            query_start=query_start,
            first_position=first_position,
            block_table=torch.from_numpy(block_table),
            slots=torch.from_numpy(block_ids * block_size + offset),
            block_size=block_size,
            retention=spec.retention,
        )
        if sparse_read is not None and spec.has_bounds:
            is_sparse = (positions >= tables.num_prompt[lines][row_of_token]) & (block_index >= sparse_read.num_blocks)
            _read_sparsely(plan, block_ids, offset, is_sparse, sparse_read.num_blocks)
        plans.append(plan)
    return StepInputs(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        plans=tuple(plans),
        last_of_row=starts[1:] - 1,
    )


def _read_sparsely(
    plan: AttentionPlan,
    block_ids: NDArray[np.int64],
    offset: NDArray[np.int64],
    is_sparse: NDArray[np.bool_],
    limit: int,
) -> None:
    """Fill in what ``plan`` says of full blocks and of the tokens ``is_sparse`` [T], which end their rows.

    ``block_ids`` and ``offset`` int64 [T] are where the tokens are written."""
    sealed = block_ids[offset == plan.block_size - 1]
    if len(sealed):
        plan.sealed = torch.from_numpy(sealed)
    if not is_sparse.any():
        return
    starts = plan.query_start.numpy()
    row_of_token = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    tokens, others = np.flatnonzero(is_sparse), np.flatnonzero(~is_sparse)
    num_before = np.zeros(len(starts), dtype=np.int32)
    np.cumsum(np.bincount(row_of_token[others], minlength=len(starts) - 1), out=num_before[1:])
    dense = replace(plan, query_start=torch.from_numpy(num_before), slots=torch.zeros(len(others), dtype=torch.int64))
    slot = plan.first_position.numpy()[row_of_token] + np.arange(len(row_of_token)) - starts[:-1][row_of_token]
    plan.sparse = SparseStep(
        tokens=torch.from_numpy(tokens),
        block_table=plan.block_table[torch.from_numpy(row_of_token[tokens])].contiguous(),
        num_blocks=torch.from_numpy((slot[tokens] // plan.block_size + 1).astype(np.int32)),
        last_offset=torch.from_numpy(offset[tokens].astype(np.int32)),
        limit=limit,
        block_size=plan.block_size,
        dense_tokens=torch.from_numpy(others),
        dense=dense if len(others) else None,
    )
