"""How the memory of a pool is shared between groups, whose needs grow differently with the length of a sequence.

A FULL group needs blocks in proportion to a sequence's length, a group with a window stops at its window.  A pool is
split once, before the lengths are known, so the split is the one that does best in its worst case: over all lengths up
to the longest, the share of the sequences it holds among those that a split made for that very length would hold.
"""

from collections.abc import Iterable, Sequence
from math import ceil
from typing import NamedTuple, Self

from kvasir.kv.retention import Retention, RetentionKind
from kvasir.kv.spec import BlockArithmetic

_LENGTHS_PER_DOUBLING = 4
_HALVINGS = 30


class GroupDemand(NamedTuple):
    """What sequences take of one group."""

    block_bytes: int
    block_size: int
    retention: Retention

    @classmethod
    def of(cls, spec: BlockArithmetic) -> Self:
        return cls(spec.block_bytes, spec.block_size, spec.retention)

    def held(self, num_tokens: int) -> int:
        """The most blocks that a sequence of up to ``num_tokens`` holds while it computes one token a step."""
        return self.retention.max_blocks(num_tokens, 1, self.block_size)

    def passing(self, num_tokens: int, chunk_tokens: int) -> int:
        """How many more it holds during a step in which it computes ``chunk_tokens``.  All sequences together compute
        no more than that in a step, so the pool needs this once."""
        return self.retention.max_blocks(num_tokens, chunk_tokens, self.block_size) - self.held(num_tokens)


def num_sequences(
    demands: Sequence[GroupDemand], num_blocks: Sequence[int], num_tokens: int, chunk_tokens: int
) -> float:
    """How many sequences of ``num_tokens`` the blocks hold at once, with fractions."""
    return min(
        max(0, have - demand.passing(num_tokens, chunk_tokens)) / demand.held(num_tokens)
        for demand, have in zip(demands, num_blocks, strict=True)
    )


def split_pool(
    demands: Sequence[GroupDemand], budget_bytes: int, *, max_model_len: int, chunk_tokens: int, max_num_seqs: int
) -> tuple[int, ...]:
    """Blocks of each group; together at most ``budget_bytes``, into which one sequence of ``max_model_len`` must fit.

    ``max_num_seqs`` is how many sequences run at once at most: no more than that are provided for at any length.
    """
    lengths = _lengths(demands, max_model_len)
    wanted = {
        length: min(max_num_seqs, _most_sequences(demands, budget_bytes, length, chunk_tokens)) for length in lengths
    }

    def needs(share: float) -> list[int]:
        return [
            max(
                ceil(max(1.0, share * most) * demand.held(length)) + demand.passing(length, chunk_tokens)
                for length, most in wanted.items()
            )
            for demand in demands
        ]

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS if len(demands) > 1 else 0):
        middle = (low + high) / 2
        if _num_bytes(demands, needs(middle)) <= budget_bytes:
            low = middle
        else:
            high = middle
    return share_out(needs(low), [demand.block_bytes for demand in demands], budget_bytes)


def share_out(needs: Sequence[int], block_bytes: Sequence[int], budget_bytes: int) -> tuple[int, ...]:
    """``budget_bytes`` in blocks per group, in proportion to ``needs`` and never less; ``needs`` must fit."""
    need_bytes = sum(count * size for count, size in zip(needs, block_bytes, strict=True))
    shares = [budget_bytes * count // need_bytes for count in needs]
    left_bytes = budget_bytes - sum(count * size for count, size in zip(shares, block_bytes, strict=True))
    while True:
        fitting = [g for g, size in enumerate(block_bytes) if size <= left_bytes]
        if not fitting:
            return tuple(shares)
        scarcest = min(fitting, key=lambda g: shares[g] / needs[g])
        shares[scarcest] += 1
        left_bytes -= block_bytes[scarcest]


def _num_bytes(demands: Iterable[GroupDemand], num_blocks: Iterable[int]) -> int:
    return sum(demand.block_bytes * count for demand, count in zip(demands, num_blocks, strict=True))


def _most_sequences(demands: Sequence[GroupDemand], budget_bytes: int, length: int, chunk_tokens: int) -> float:
    """How many sequences of ``length`` a split made for them would hold."""
    once_bytes = _num_bytes(demands, [demand.passing(length, chunk_tokens) for demand in demands])
    return (budget_bytes - once_bytes) / _num_bytes(demands, [demand.held(length) for demand in demands])


def _lengths(demands: Sequence[GroupDemand], max_model_len: int) -> list[int]:
    """Lengths from the longest down to a block, evenly on a scale of doublings, and where windows stop growing."""
    smallest = demands[0].block_size
    lengths = {max_model_len}
    lengths.update(
        demand.held(max_model_len) * demand.block_size
        for demand in demands
        if demand.retention.kind is not RetentionKind.FULL
    )
    step = 1
    while (length := round(max_model_len * 2 ** (-step / _LENGTHS_PER_DOUBLING))) > smallest:
        lengths.add(length)
        step += 1
    return sorted(min(length, max_model_len) for length in lengths)
