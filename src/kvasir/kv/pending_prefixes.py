"""Prefixes that a running sequence is computing now, so that a twin can wait for them instead of computing them too."""


class PendingPrefixes:
    """A counted set of block keys.  A waiting request whose next block is pending will hit it soon: computing it twice
    would cost time and blocks.  Whoever announced a key computes it or withdraws it (preemption, abort), so nobody
    waits for a key that never comes."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, key: bytes) -> bool:
        return key in self._counts

    def counts(self) -> dict[bytes, int]:
        """How many sequences announced each key (for the audit)."""
        return dict(self._counts)

    def add(self, keys: list[bytes]) -> None:
        for key in keys:
            self._counts[key] = self._counts.get(key, 0) + 1

    def remove(self, keys: list[bytes]) -> None:
        for key in keys:
            count = self._counts[key] - 1
            if count:
                self._counts[key] = count
            else:
                del self._counts[key]
