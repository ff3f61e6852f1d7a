"""State machine for the block pool and its free list, against a model made of plain lists."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvasir.kv.pool import BlockPool


class PoolMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks):
        self.evicted: list[bytes] = []
        self.pool = BlockPool(num_blocks, lambda block: self.evicted.append(block.key))
        self.order = list(range(num_blocks))  # unused blocks, reused first to last
        self.references: dict[int, int] = {}
        self.keys: dict[int, bytes] = {}
        self.next_key = 0

    @precondition(lambda self: self.order)
    @rule()
    def allocate(self):
        wanted = self.order.pop(0)
        evicted = self.keys.pop(wanted, None)
        block = self.pool.allocate()
        assert block.block_id == wanted and block.ref_count == 1 and block.key is None
        if evicted is not None:
            assert self.evicted[-1] == evicted
        self.references[wanted] = 1

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def take(self, data):
        block_id = data.draw(st.sampled_from(self.order))
        self.order.remove(block_id)
        self.keys.pop(block_id, None)
        assert self.pool.take(block_id).block_id == block_id
        self.references[block_id] = 1

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def give_key(self, data):
        block_id = data.draw(st.sampled_from(sorted(self.references)))
        if block_id not in self.keys:
            self.next_key += 1
            self.keys[block_id] = self.next_key.to_bytes(4, "little")
            self.pool.set_key(self.pool.blocks[block_id], self.keys[block_id])

    @precondition(lambda self: self.references or self.keys)
    @rule(data=st.data())
    def acquire(self, data):
        block_id = data.draw(st.sampled_from(sorted(self.references.keys() | self.keys.keys())))
        if block_id not in self.references:
            self.order.remove(block_id)
        self.references[block_id] = self.references.get(block_id, 0) + 1
        self.pool.acquire(self.pool.blocks[block_id])

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def release(self, data):
        block_id = data.draw(st.sampled_from(sorted(self.references)))
        self.references[block_id] -= 1
        if self.references[block_id] == 0:
            del self.references[block_id]
            self.order.append(block_id) if block_id in self.keys else self.order.insert(0, block_id)
        self.pool.release(self.pool.blocks[block_id])

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        assert [block.block_id for block in pool.free_list] == self.order
        assert pool.num_used == len(self.references)
        assert pool.num_cached == sum(block_id in self.keys for block_id in self.order)
        assert pool.num_free + pool.num_cached + pool.num_used == pool.num_blocks
        for block in pool.blocks:
            assert block.ref_count == self.references.get(block.block_id, 0)
            assert block.key == self.keys.get(block.block_id)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
