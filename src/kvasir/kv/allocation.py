"""How many blocks a sequence reserves: what it needs (paged), or the most it could ever need (contiguous)."""

from collections.abc import Iterable
from enum import Enum

from kvasir.core.errors import ConfigError, InvariantViolation
from kvasir.kv.retention import Retention, RetentionKind


class AllocationKind(Enum):
    PAGED = "paged"
    CONTIGUOUS = "contiguous"
    """Reserve one run of consecutive blocks for max_model_len per sequence: the comparison, not a recommendation."""


def check_allocation(
    allocation: AllocationKind, *, enable_prefix_caching: bool, retentions: Iterable[Retention]
) -> None:
    """Raise ``ConfigError`` when contiguous regions meet what cannot work, or would do nothing, with them."""
    if allocation is not AllocationKind.CONTIGUOUS:
        return
    if enable_prefix_caching:
        raise ConfigError(
            "--kv-allocation contiguous cannot share blocks, so it does not work with --enable-prefix-caching; "
            "add --no-enable-prefix-caching."
        )
    for retention in retentions:
        if retention.kind is RetentionKind.WINDOW:
            raise ConfigError(
                f"--kv-allocation contiguous gives no block back before a sequence ends, so {retention} (from "
                "--kv-retention or --head-profile) would save nothing with it; use --kv-allocation paged."
            )


class Regions:
    """Equal runs of consecutive blocks, one per sequence: how caches were allocated before paging.

    Region r of group g is blocks [r * region_blocks[g], (r + 1) * region_blocks[g])."""

    def __init__(self, num_blocks: tuple[int, ...], region_blocks: tuple[int, ...]) -> None:
        self.region_blocks = region_blocks
        self.num_regions = min(total // need for total, need in zip(num_blocks, region_blocks, strict=True))
        self._free = list(range(self.num_regions - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        if not self._free:
            raise InvariantViolation("a region was taken when none was free")
        return self._free.pop()

    def give_back(self, region_id: int) -> None:
        self._free.append(region_id)

    def block_ids(self, region_id: int, group_id: int) -> range:
        size = self.region_blocks[group_id]
        return range(region_id * size, (region_id + 1) * size)
