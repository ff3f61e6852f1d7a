"""Order of service: who is before whom, in the queue and among the running."""

from bisect import insort
from collections.abc import Iterator

from kvasir.core.sequence import Sequence
from kvasir.scheduling.config import QueuePolicy

ServiceKey = tuple[int, int, int]
"""(priority, arrival number, index within the request): smaller is served first and preempted last."""


class ServiceOrder:
    """Gives every request an arrival number and every sequence its place.  A preempted sequence keeps its place."""

    def __init__(self, policy: QueuePolicy) -> None:
        self._uses_priority = policy is QueuePolicy.PRIORITY
        self._arrivals: dict[str, int] = {}
        self._next_arrival = 0

    def arrive(self, request_id: str) -> None:
        self._arrivals[request_id] = self._next_arrival
        self._next_arrival += 1

    def leave(self, request_id: str) -> None:
        del self._arrivals[request_id]

    def key(self, sequence: Sequence) -> ServiceKey:
        request = sequence.request
        priority = request.priority if self._uses_priority else 0
        return (priority, self._arrivals[request.request_id], sequence.index)


class SequenceLine:
    """Sequences kept in order of service.  Small enough (hundreds) for a sorted list to beat anything cleverer."""

    def __init__(self, order: ServiceOrder) -> None:
        self._order = order
        self._keys: list[ServiceKey] = []
        self._sequences: dict[ServiceKey, Sequence] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __iter__(self) -> Iterator[Sequence]:
        """First served first; safe against changes while iterating."""
        sequences = self._sequences
        return iter([sequences[key] for key in self._keys])

    def __contains__(self, sequence: Sequence) -> bool:
        return self._sequences.get(self._order.key(sequence)) is sequence

    def add(self, sequence: Sequence) -> None:
        key = self._order.key(sequence)
        self._sequences[key] = sequence
        if not self._keys or key > self._keys[-1]:
            self._keys.append(key)
        else:
            insort(self._keys, key)

    def remove(self, sequence: Sequence) -> None:
        key = self._order.key(sequence)
        del self._sequences[key]
        self._keys.remove(key)

    def first(self, count: int) -> list[Sequence]:
        return [self._sequences[key] for key in self._keys[:count]]

    def last(self) -> Sequence:
        return self._sequences[self._keys[-1]]
