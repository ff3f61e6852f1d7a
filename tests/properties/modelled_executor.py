"""An executor without numbers that checks every plan against a model of the KV store.

It stores, for every slot, *which prefix* was written there.  Computing a token demands that each position the query
sees holds exactly the sequence's own prefix up to that position: a stale prefix hit, a block freed too early, a missed
copy-on-write or a wrong block table is caught at the step where it would have produced a wrong answer.  The "model"
draws a token from the prefix alone, so any run of the same request must give the same tokens.
"""

import hashlib

from kvasir.core.step import SampledToken, StepPlan, StepResult, StepRow
from kvasir.kv.layout import KVLayout
from kvasir.kv.retention import Retention, RetentionKind

VOCAB_SIZE = 50


def prefix_digest(token_ids) -> bytes:
    return hashlib.blake2b(repr(list(token_ids)).encode(), digest_size=8).digest()


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
    def __init__(self, layout: KVLayout, fail_token: int | None = None) -> None:
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

    def _write(self, row: StepRow) -> None:
        history = self.tokens[row.sequence_id]
        tables = self.tables[row.sequence_id]
        for update in row.table_updates:
            for i, block_id in enumerate(update.block_ids):
                tables[update.group_id][update.first_index + i] = block_id
        assert row.token_ids, "a row computes nothing"
        assert list(row.token_ids) == history[row.position : row.position + len(row.token_ids)]
        for group_id, table in enumerate(tables):
            for i in range(len(row.token_ids)):
                position = row.position + i
                block_id = table[position // self.layout.block_size]
                assert block_id >= 0, "a token is written into a block that was given back"
                key = (block_id, position % self.layout.block_size)
                self.slots[group_id][key] = prefix_digest(history[: position + 1])

    def _check_visible(self, row: StepRow) -> None:
        history = self.tokens[row.sequence_id]
        block_size = self.layout.block_size
        for group_id, spec in enumerate(self.layout.groups):
            table = self.tables[row.sequence_id][group_id]
            queries = range(row.position, row.position + len(row.token_ids))
            for position in range(queries.stop):
                # The first query reaches furthest back, and every later one sees itself.
                if position not in queries and not sees(spec.retention, queries.start, position):
                    continue
                held = self.slots[group_id].get((table[position // block_size], position % block_size))
                assert held == prefix_digest(history[: position + 1]), (
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
