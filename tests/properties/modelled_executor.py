"""An executor without numbers that checks every plan against a model of the KV store.

It stores, for every slot, *which prefix* was written there.  Computing a token demands that each position the query
sees holds exactly the sequence's own prefix up to that position: a stale prefix hit, a block freed too early, a missed
copy-on-write or a wrong block table is caught at the step where it would have produced a wrong answer.  The "model"
draws a token from the prefix alone, so any run of the same request must give the same tokens.
"""

import hashlib

from kvasir.core.step import Compaction, SampledToken, StepPlan, StepResult, StepRow
from kvasir.kv.eviction import EvictionRule
from kvasir.kv.layout import KVLayout
from kvasir.kv.retention import Retention, RetentionKind
from kvasir.kv.sparse_read import SparseRead

VOCAB_SIZE = 50


def prefix_digest(token_ids) -> bytes:
    return hashlib.blake2b(repr(list(token_ids)).encode(), digest_size=8).digest()


def evicted_digest(token_ids, num_prompt: int) -> bytes:
    """What a token's K and V depend on when part of its prompt was evicted before it was computed."""
    return prefix_digest([*token_ids, "after an eviction at", num_prompt])


def kept_by_model(compaction: Compaction, rule: EvictionRule) -> list[int]:
    """A stand-in for scores: what the rule protects, and of the rest every other token first."""
    num = compaction.num_tokens
    first = rule.num_first(num, compaction.num_pinned)
    protected = [*range(first), *range(max(first, num - rule.recent), num)]
    rest = sorted(set(range(num)) - set(protected), key=lambda position: (position % 2, position))
    return sorted((protected + rest)[: compaction.num_kept])


def draw_token(token_ids, index: int) -> int:
    """The token that follows ``token_ids`` in the random stream of sequence ``index``."""
    digest = hashlib.blake2b(prefix_digest(token_ids) + bytes([index]), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB_SIZE


def sees(retention: Retention, query: int, key: int) -> bool:
    """Law 2, written out once more: whether the query at position ``query`` sees the earlier ``key``."""
    if retention.kind is RetentionKind.FULL:
        return True
    if retention.kind is RetentionKind.SLIDING:
        return key > query - retention.window
    size = retention.block_size
    return key // size < retention.sinks // size or key // size >= query // size - retention.window // size


class ModelledExecutor:
    def __init__(
        self,
        layout: KVLayout,
        fail_token: int | None = None,
        eviction: EvictionRule | None = None,
        sparse_read: SparseRead | None = None,
    ) -> None:
        self.eviction = eviction
        self.sparse_read = sparse_read
        self.num_prompt: dict[int, int] = {}
        self.kept: dict[int, list[int]] = {}
        self.layout = layout
        self.slots: list[dict[tuple[int, int], bytes]] = [{} for _ in layout.groups]
        self.tokens: dict[int, list[int]] = {}
        self.index: dict[int, int] = {}
        self.tables: dict[int, list[dict[int, int]]] = {}
        self.plans: list[StepPlan] = []
        self.fail_token = fail_token

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        for sequence_id in plan.ended:
            del self.tokens[sequence_id], self.tables[sequence_id], self.index[sequence_id]
        for start in plan.starts:
            assert start.sequence_id not in self.tokens, "a known sequence was started again"
            self.tokens[start.sequence_id] = list(start.token_ids)
            self.tables[start.sequence_id] = [{} for _ in self.layout.groups]
            self.index[start.sequence_id] = start.index
            self.num_prompt[start.sequence_id] = start.num_prompt_tokens
        for compaction in plan.compactions:
            self._compact(compaction)
        for group_id, source, target in plan.copies:
            slots = self.slots[group_id]
            for offset in range(self.layout.block_size):
                slots.pop((target, offset), None)
                if (source, offset) in slots:
                    slots[target, offset] = slots[source, offset]
        # Write everything first: rows of one step must not disturb each other.
        for row in plan.rows:
            self._write(row)
        tokens: list[SampledToken] = []
        failed: dict[int, str] = {}
        for row in plan.rows:
            self._check_visible(row)
            self._sample(row, tokens, failed)
        return StepResult(step_id=plan.step_id, tokens=tuple(tokens), failed=failed)

    def _compact(self, compaction: Compaction) -> None:
        """All kept tokens are read before any is written: targets may be sources."""
        assert self.eviction is not None
        assert len(compaction.sources) == -(-compaction.num_tokens // self.layout.block_size)
        assert len(compaction.targets) == -(-compaction.num_kept // self.layout.block_size)
        slots, size = self.slots[compaction.group_id], self.layout.block_size
        kept = kept_by_model(compaction, self.eviction)
        held = [slots[compaction.sources[position // size], position % size] for position in kept]
        for target in compaction.targets:
            for offset in range(size):
                slots.pop((target, offset), None)
        for slot, digest in enumerate(held):
            slots[compaction.targets[slot // size], slot % size] = digest

    def _expected(self, row: StepRow) -> list[tuple[int, bytes]]:
        """(position, digest) of slot 0, 1, ... of the row's sequence, up to the row's last token."""
        history, num_prompt = self.tokens[row.sequence_id], self.num_prompt[row.sequence_id]
        end = row.position + len(row.token_ids)
        if not row.num_evicted:
            assert self.eviction is None or row.position < num_prompt or not self.eviction.num_evicted(num_prompt)
            return [
                (p, evicted_digest(history[: p + 1], num_prompt) if self._is_sparse(p, num_prompt) else digest)
                for p, digest in enumerate(prefix_digest(history[: p + 1]) for p in range(end))
            ]
        assert self.eviction is not None and row.num_evicted == self.eviction.num_evicted(num_prompt)
        assert row.position >= num_prompt
        whole = Compaction(0, num_prompt, 0, num_prompt - row.num_evicted, (), ())
        kept = [(p, prefix_digest(history[: p + 1])) for p in kept_by_model(whole, self.eviction)]
        return kept + [(p, evicted_digest(history[: p + 1], num_prompt)) for p in range(num_prompt, end)]

    def _is_sparse(self, position: int, num_prompt: int) -> bool:
        """The query there did not read everything: K and V are not what another sequence has for these tokens."""
        rule = self.sparse_read
        return rule is not None and position >= num_prompt and position // self.layout.block_size >= rule.num_blocks

    def _write(self, row: StepRow) -> None:
        history = self.tokens[row.sequence_id]
        tables = self.tables[row.sequence_id]
        for update in row.table_updates:
            for i, block_id in enumerate(update.block_ids):
                tables[update.group_id][update.first_index + i] = block_id
        assert row.token_ids, "a row computes nothing"
        assert list(row.token_ids) == history[row.position : row.position + len(row.token_ids)]
        expected = self._expected(row)
        for group_id, table in enumerate(tables):
            for i in range(len(row.token_ids)):
                slot = row.position - row.num_evicted + i
                block_id = table[slot // self.layout.block_size]
                assert block_id >= 0, "a token is written into a block that was given back"
                self.slots[group_id][block_id, slot % self.layout.block_size] = expected[slot][1]

    def _check_visible(self, row: StepRow) -> None:
        expected = self._expected(row)
        block_size = self.layout.block_size
        for group_id, spec in enumerate(self.layout.groups):
            table = self.tables[row.sequence_id][group_id]
            first = row.position - row.num_evicted
            for slot in range(len(expected)):
                # The first query reaches furthest back, and every later one sees itself.
                if slot < first and not sees(spec.retention, first, slot):
                    continue
                held = self.slots[group_id].get((table[slot // block_size], slot % block_size))
                position, digest = expected[slot]
                assert held == digest, (
                    f"sequence {row.sequence_id} would read a wrong key at position {position} of group {group_id}"
                )

    def _sample(self, row: StepRow, tokens: list[SampledToken], failed: dict[int, str]) -> None:
        history = self.tokens[row.sequence_id]
        if row.sample_for:
            assert row.position + len(row.token_ids) == len(history), "a token is drawn before its context is computed"
        prefix = list(history)
        for sequence_id in row.sample_for:
            token = draw_token(prefix, self.index[sequence_id])
            if token == self.fail_token:
                failed[sequence_id] = "logits are not finite"
                continue
            self.tokens[sequence_id].append(token)
            tokens.append(SampledToken(sequence_id, token))


def expected_tokens(prompt, index: int, max_tokens: int, stop_ids=frozenset()) -> list[int]:
    """What a request gets when it is alone in the world."""
    history = list(prompt)
    output: list[int] = []
    while len(output) < max_tokens:
        token = draw_token(history, index)
        history.append(token)
        output.append(token)
        if token in stop_ids:
            break
    return output
