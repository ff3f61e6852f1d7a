"""What a pool holds: resources with a capacity, and what a sequence of a given length takes of each."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from kvasir.planner.lengths import LengthSample

_Z_99 = 2.326
"""Sequences are counted so that their need stays within the pool 99 times of 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """``capacity`` units (blocks, cells, states), of which a sequence of n tokens takes ``cost(n)``.

    ``shared(n)`` is what n tokens of a common prefix take once for all sequences that begin with them; by default what
    whole blocks of it cost.
    """

    name: str
    capacity: float
    cost: Callable[[int], float]
    is_prefix_shared: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One engine's KV pool on one instance.

    ``num_bytes`` is what the pool takes on one device.  ``printed_tokens`` and ``printed_concurrency`` are what the
    engine prints at start, None where it prints none; ``block_size`` is the rounding of a sequence in tokens.
    ``max_sequences`` is a limit of slots, None where there is none.
    """

    num_bytes: int
    block_size: int
    resources: tuple[Resource, ...]
    num_blocks: tuple[int, ...] = ()
    printed_tokens: int | None = None
    printed_concurrency: float | None = None
    max_sequences: int | None = None

    def num_sequences(self, num_tokens: int) -> float:
        """How many sequences of exactly ``num_tokens`` are held at once, with fractions."""
        most = min(
            (r.capacity / cost for r in self.resources if (cost := r.cost(num_tokens)) > 0), default=float("inf")
        )
        return most if self.max_sequences is None else min(most, self.max_sequences)

    def num_contiguous(self, max_model_len: int) -> float:
        """The same when every sequence reserves ``max_model_len``, as before paging."""
        return self.num_sequences(max_model_len)

    def num_expected(self, sample: LengthSample, shared_prefix: int = 0) -> float:
        """How many sequences run at once at the sampled lengths without running out, 99 times of 100.

        ``shared_prefix`` tokens at the beginning of every sequence are held once.  A sequence holds what it has
        computed, so the sample is over the moments of its life, not over its final lengths.
        """
        most = min(self._expected(resource, sample, shared_prefix) for resource in self.resources)
        return most if self.max_sequences is None else min(most, self.max_sequences)

    def _expected(self, resource: Resource, sample: LengthSample, shared_prefix: int) -> float:
        prefix = shared_prefix // self.block_size * self.block_size if resource.is_prefix_shared else 0
        once = resource.cost(prefix) if prefix else 0.0
        costs = [max(0.0, resource.cost(length) - once) for length in sample.held_lengths]
        mean = sum(c * w for c, w in zip(costs, sample.weights, strict=True))
        deviation = sqrt(max(0.0, sum(c * c * w for c, w in zip(costs, sample.weights, strict=True)) - mean * mean))
        room = resource.capacity - once
        if room <= 0:
            return 0.0
        if mean == 0:
            return float("inf")
        # n mean + z sqrt(n) deviation = room, solved for sqrt(n).
        root = (-_Z_99 * deviation + sqrt((_Z_99 * deviation) ** 2 + 4 * mean * room)) / (2 * mean)
        return root * root
