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
        sampled = self._sample(plan, sampling, self._forward_rows(inputs, inputs.last_of_row[sampling]))
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
        chosen = np.arange(len(inputs.token_ids)) if tokens is None else tokens
        return self._decoder.logits(self._forward_rows(inputs, chosen))

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

    def _forward_rows(self, inputs: StepInputs, chosen: np.ndarray) -> Tensor:
        return self._decoder.forward_rows(
            inputs.token_ids, inputs.positions, self._store, inputs.plans, torch.from_numpy(chosen)
        )

    def _sample(self, plan: StepPlan, sampling: list[int], x: Tensor) -> Sampled:
        """``x`` [S, hidden_size]: of each sampling row's last token.  Siblings each get logits of their own to edit."""
        sequence_ids = [i for row in sampling for i in plan.rows[row].sample_for]
        if not sequence_ids:
            return Sampled(tokens=())
        if len(sequence_ids) > len(sampling):
            x = x.repeat_interleave(torch.tensor([len(plan.rows[row].sample_for) for row in sampling]), dim=0)
        takes_best = self._sampler.takes_best(sequence_ids)
        if not takes_best.any():
            return self._sampler.sample(sequence_ids, self._decoder.logits(x))
        if takes_best.all():
            return self._sample_best(sequence_ids, x)
        greedy, others = np.flatnonzero(takes_best), np.flatnonzero(~takes_best)
        parts = [
            self._sample_best([sequence_ids[i] for i in greedy], x[greedy]),
            self._sampler.sample([sequence_ids[i] for i in others], self._decoder.logits(x[others])),
        ]
        token_of = {token.sequence_id: token for part in parts for token in part.tokens}
        failed = parts[0].failed | parts[1].failed
        return Sampled(tokens=tuple(token_of[i] for i in sequence_ids if i not in failed), failed=failed)

    def _sample_best(self, sequence_ids: list[int], x: Tensor) -> Sampled:
        best = self._decoder.best_tokens(x)
        return self._sampler.sample_best(sequence_ids, best.columns.numpy(), best.values.numpy())
