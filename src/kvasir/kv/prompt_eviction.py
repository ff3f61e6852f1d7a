"""Memory given back at the end of prefill: a prompt's blocks go, fewer come, and a compaction fills those."""

from collections.abc import Sequence as Items

from kvasir.core.errors import ConfigError
from kvasir.core.sequence import Sequence
from kvasir.core.step import Compaction
from kvasir.kv.allocation import AllocationKind
from kvasir.kv.eviction import EvictionRule
from kvasir.kv.layout import KVLayout
from kvasir.kv.pool import BlockPool
from kvasir.kv.sequence_blocks import SequenceBlocks


class PromptEviction:
    """The bookkeeping of one manager; ``rule`` None evicts nothing.

    Moves are decided here and done by the executor at the start of the next step, in the order of decision and before
    anything is written.  So the blocks given up may be handed out at once, even as the targets of the same move: what
    they hold is read first.
    """

    def __init__(self, rule: EvictionRule | None, pools: Items[BlockPool]) -> None:
        self.rule = rule
        self._pools = pools
        self._compactions: list[Compaction] = []
        self.num_freed_blocks = [0] * len(pools)
        """Per group, blocks that sequences gave up less those they took for what they kept, since the start."""
        self.num_evicted_tokens = 0

    def num_to_evict(self, sequence: Sequence) -> int:
        """How many prompt tokens of ``sequence`` go when its prompt is computed; the same before and after."""
        if self.rule is None:
            return 0
        return self.rule.num_evicted(sequence.num_prompt_tokens, sequence.request.num_pinned_tokens)

    def is_due(self, sequence: Sequence) -> bool:
        """The prompt is computed, no more, and its tokens have not been evicted yet."""
        return (
            self.rule is not None
            and sequence.num_evicted_tokens == 0
            and sequence.num_computed_tokens == sequence.num_prompt_tokens
            and self.num_to_evict(sequence) > 0
        )

    def limit(self, sequence: Sequence, num_computed: int, num_tokens: int) -> int:
        """How many of the ``num_tokens`` after the first ``num_computed`` may be computed in one go: not across the end
        of a prompt that has to be cut there."""
        left = sequence.num_prompt_tokens - num_computed
        return left if 0 < left < num_tokens and self.num_to_evict(sequence) else num_tokens

    def most_slots(self, sequence: Sequence) -> int:
        """The most slots ``sequence`` still takes at once to compute all its present tokens."""
        if sequence.num_evicted_tokens:
            return sequence.num_tokens - sequence.num_evicted_tokens
        return self.peak_slots(sequence.num_prompt_tokens, sequence.num_tokens, sequence.request.num_pinned_tokens)

    def peak_slots(self, num_prompt: int, num_tokens: int, num_pinned: int) -> int:
        """The most slots that ``num_tokens``, of which ``num_prompt`` are prompt, ever take: the whole prompt before
        the eviction, or what is left of it and the output after."""
        if self.rule is None:
            return num_tokens
        num_evicted = self.rule.num_evicted(num_prompt, num_pinned)
        return max(min(num_prompt, num_tokens), num_tokens - num_evicted)

    def num_cacheable(self, sequence: Sequence, block_size: int) -> int:
        """How many whole blocks of ``sequence`` may come from the prefix cache.  Its last token is always computed;
        where the prompt is cut, what comes after it is not what the cache has for the same tokens."""
        num_tokens = sequence.num_prompt_tokens if self.num_to_evict(sequence) else sequence.num_tokens
        return (num_tokens - 1) // block_size

    def run(self, sequence: Sequence, state: SequenceBlocks, block_size: int) -> bool:
        """If it is due: swap the prompt's blocks for private ones and note the compaction; False, and no change, when
        there is no room for them.

        Blocks of the prompt that others read, or that have a key, stay as they are for whoever finds them."""
        if not self.is_due(sequence):
            return True
        num_evicted = self.num_to_evict(sequence)
        num_kept = sequence.num_prompt_tokens - num_evicted
        num_targets = -(-num_kept // block_size)
        for table, pool in zip(state.tables, self._pools, strict=True):
            num_given = sum(block.ref_count == 1 for block in table.live_blocks())
            if pool.num_available + num_given < num_targets:
                return False
        for g, (table, pool) in enumerate(zip(state.tables, self._pools, strict=True)):
            sources = table.live_blocks()
            for block in reversed(sources):  # tail first, as in ``KVManager.release``
                pool.release(block)
            targets = [pool.allocate() for _ in range(num_targets)]
            table.blocks = list(targets)
            self.num_freed_blocks[g] += len(sources) - num_targets
            self._compactions.append(
                Compaction(
                    group_id=g,
                    num_tokens=sequence.num_prompt_tokens,
                    num_pinned=sequence.request.num_pinned_tokens,
                    num_kept=num_kept,
                    sources=tuple(block.block_id for block in sources),
                    targets=tuple(block.block_id for block in targets),
                )
            )
        sequence.num_evicted_tokens = num_evicted
        self.num_evicted_tokens += num_evicted
        state.is_compacted = True
        state.is_shared = False
        state.must_announce = True
        state.num_ready_slots = 0
        return True

    def take(self) -> tuple[Compaction, ...]:
        """The moves decided since the last call, for the next plan."""
        compactions, self._compactions = tuple(self._compactions), []
        return compactions


def check_eviction(rule: EvictionRule | None, layout: KVLayout, allocation: AllocationKind) -> None:
    """Raises ``ConfigError`` when ``rule`` cannot work on this layout and allocation."""
    if rule is None:
        return
    if allocation is AllocationKind.CONTIGUOUS:
        raise ConfigError(
            f"--kv-eviction {rule} gives blocks back, which --kv-allocation contiguous cannot; use one or the other."
        )
    windowed = next((spec.retention for spec in layout.groups if spec.retention.window), None)
    if windowed is not None:
        raise ConfigError(
            f"--kv-eviction {rule} is for heads that keep the whole context, but some have a window of "
            f"{windowed.window} tokens (the model's own, or from --kv-retention or --head-profile); leave one out."
        )
