"""Runs step plans on a real model: block tables, one forward pass, sampling.  The engine's ``Executor``."""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvasir.compression.compactor import Compactor
from kvasir.core.errors import InvariantViolation
from kvasir.core.step import BlockCopy, StepPlan, StepResult
from kvasir.engine.config import EngineConfig
from kvasir.engine.inputs import BlockTables, StepInputs, make_inputs
from kvasir.engine.sampler import Sampled, Sampler
from kvasir.formats.store import KVStore
from kvasir.models.decoder import Decoder


class ModelRunner:
    """Holds what the model needs between steps and decides nothing.

    ``config`` is the effective one: its ``max_model_len`` is known.  Results come in the order of the plan's rows and
    of each row's ``sample_for``.
    """

    def __init__(self, decoder: Decoder, store: KVStore, config: EngineConfig) -> None:
        if config.max_model_len is None:
            raise ValueError("the runner needs a configuration with max_model_len filled in")
        max_num_seqs = config.scheduler.max_num_seqs
        layout = store.layout
        max_blocks = -(-config.max_model_len // layout.block_size)
        self._decoder = decoder
        self._store = store
        self._tables = BlockTables(len(layout.groups), max_num_seqs, max_blocks)
        self._sparse_read = config.cache.sparse_read
        self._compactor = Compactor(store, config.cache.eviction)
        self._sampler = Sampler(max_num_seqs=max_num_seqs, seed=config.seed)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        started_s = time.perf_counter()
        inputs = self._prepare(plan)
        sampling = [i for i, row in enumerate(plan.rows) if row.sample_for]
        logits = self._forward(inputs, inputs.last_of_row[sampling])
        sampled = self._sample(plan, sampling, logits)
        return StepResult(
            step_id=plan.step_id,
            tokens=sampled.tokens,
            failed=sampled.failed,
            duration_s=time.perf_counter() - started_s,
        )

    @torch.inference_mode()
    def forward_logits(self, plan: StepPlan, tokens: np.ndarray | None = None) -> Tensor:
        """Apply and compute ``plan`` but sample nothing: the logits fp32 [N, vocab_size] after its tokens.

        ``tokens`` int64 [N] picks them by their number within the step (None: all, in order).  For measuring a model on
        given text: the caller knows the next tokens.  ``sample_for`` is not looked at.
        """
        inputs = self._prepare(plan)
        return self._forward(inputs, np.arange(len(inputs.token_ids)) if tokens is None else tokens)

    def _prepare(self, plan: StepPlan) -> StepInputs:
        for sequence_id in plan.ended:
            self._tables.end(sequence_id)
            self._sampler.end(sequence_id)
        for start in plan.starts:
            self._tables.start(start.sequence_id, start.num_prompt_tokens)
            self._sampler.start(start)
        if not plan.rows:
            raise InvariantViolation(f"step {plan.step_id} has no rows")
        for compaction in plan.compactions:
            self._compactor.run(compaction)
        if plan.copies:
            self._copy(plan.copies)
        for row in plan.rows:
            if row.table_updates:
                self._tables.update(row.sequence_id, row.table_updates)
        return make_inputs(plan.rows, self._tables, self._store.layout, self._sparse_read)

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        for group_id in sorted({copy.group_id for copy in copies}):
            pairs = torch.tensor([(copy.source, copy.target) for copy in copies if copy.group_id == group_id])
            sources, targets = pairs.unbind(1)
            self._store.copy(group_id, sources.contiguous(), targets.contiguous(), self._decoder.kernels)

    def _forward(self, inputs: StepInputs, logits_rows: np.ndarray) -> Tensor:
        return self._decoder.forward(
            inputs.token_ids, inputs.positions, self._store, inputs.plans, torch.from_numpy(logits_rows)
        )

    def _sample(self, plan: StepPlan, sampling: list[int], logits: Tensor) -> Sampled:
        if not sampling:
            return Sampled(tokens=())
        owners = [plan.rows[i].sample_for for i in sampling]
        if any(len(sequence_ids) > 1 for sequence_ids in owners):
            # Siblings draw from the same logits, and each edits its own copy of them.
            logits = logits.repeat_interleave(torch.tensor([len(sequence_ids) for sequence_ids in owners]), dim=0)
        return self._sampler.sample([i for sequence_ids in owners for i in sequence_ids], logits)
