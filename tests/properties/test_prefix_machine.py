"""State machine for prefix lookups: every hit is compared with a brute-force memory of what each block holds."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_setup import make_sequence
from layouts import MIXTURES
from modelled_executor import sees

from kvasir.kv.audit import audit
from kvasir.kv.manager import KVManager, KVManagerConfig

BLOCK_SIZE = 16


class PrefixMachine(RuleBasedStateMachine):
    """``content[g][block_id]`` is the prefix (as a tuple of tokens up to the block's end) it was computed for."""

    @initialize(mixture=st.sampled_from(sorted(MIXTURES)), num_blocks=st.integers(10, 20))
    def start(self, mixture, num_blocks):
        layout = MIXTURES[mixture]
        self.manager = KVManager(
            KVManagerConfig(
                layout=layout,
                num_blocks=(num_blocks,) * len(layout.groups),
                max_model_len=160,
                max_chunk_tokens=160,
            )
        )
        self.content: list[dict[int, tuple]] = [{} for _ in self.manager.groups]
        self.live: dict[int, object] = {}
        self.next_id = 0

    def _prompt(self, parts):
        return [part for part in parts for _ in range(8)]

    @rule(parts=st.lists(st.integers(0, 1), min_size=1, max_size=18), salt=st.sampled_from(["", "x"]))
    def compute(self, parts, salt):
        self.next_id += 1
        sequence = make_sequence(self.next_id, self._prompt(parts), cache_salt=salt)
        hit = self.manager.lookup(sequence)
        self.check_hit(sequence, hit, salt)
        if self.manager.reserve(sequence, sequence.num_tokens - hit.num_tokens, hit) is None:
            self.manager.release(sequence)
            audit(self.manager)
            return
        sequence.num_computed_tokens = sequence.num_tokens
        self.manager.commit(sequence)
        first_new = hit.num_tokens // BLOCK_SIZE
        for g, table in enumerate(self.manager.sequences[sequence.sequence_id].tables):
            for i, block in enumerate(table.blocks):
                if i >= first_new and block is not None:
                    self.content[g][block.block_id] = (salt, *sequence.token_ids[: (i + 1) * BLOCK_SIZE])
        self.live[sequence.sequence_id] = sequence

    def check_hit(self, sequence, hit, salt):
        assert hit.num_tokens % BLOCK_SIZE == 0 and hit.num_tokens < sequence.num_tokens
        for g, spec in enumerate(self.manager.groups):
            for position in range(hit.num_tokens):
                if not sees(spec.retention, hit.num_tokens, position):
                    continue
                i = position // BLOCK_SIZE
                block = hit.blocks[g][i]
                assert block is not None, f"hit of {hit.num_tokens} lacks position {position} in group {g}"
                assert self.content[g][block.block_id] == (salt, *sequence.token_ids[: (i + 1) * BLOCK_SIZE])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data):
        sequence = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        self.manager.release(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def trim(self, data):
        self.manager.trim(self.live[data.draw(st.sampled_from(sorted(self.live)))])

    @invariant()
    def nothing_leaks(self):
        if hasattr(self, "manager"):
            audit(self.manager)


TestPrefixMachine = PrefixMachine.TestCase
TestPrefixMachine.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
