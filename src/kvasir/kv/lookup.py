"""The longest cached prefix that is valid in every group at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvasir.kv.block import Block
from kvasir.kv.prefix_index import PrefixEntry, PrefixIndex
from kvasir.kv.retention import RetentionKind
from kvasir.kv.spec import KVSpec


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """``num_tokens`` (whole blocks) need not be computed; ``blocks[g][i]`` is group g's block i, None where no query
    from ``num_tokens`` on can see it.  Holds no references: valid until the pool changes."""

    num_tokens: int
    blocks: tuple[tuple[Block | None, ...], ...]


def find_prefix(
    index: PrefixIndex, groups: Sequence[KVSpec], keys: Sequence[bytes], content_at: Callable[[int], tuple[int, ...]]
) -> PrefixHit:
    """Longest p = n * block_size such that FULL groups hold [0, p) and the others their sinks and the window before p.

    ``keys`` are those of the whole blocks that may be reused, ``content_at(i)`` is what must be in block i.  A group
    with a window may lack old blocks, so the search runs on over holes there and keeps, per group, the length of the
    run of present blocks that ends here:

        block:      0   1   2   3   4          window of 2 blocks, no sinks
        present:    -   x   x   x   -    ->    p = 4 blocks is a hit for this group, p = 5 and p = 1 are not

    Past a missing block of a FULL group, or a missing sink, there is no hit.
    """
    block_size = groups[0].block_size
    if len(groups) == 1 and groups[0].retention.kind is RetentionKind.FULL:
        return _find_full(index, keys, content_at, block_size)
    # Per group, how many leading blocks every hit must have.
    num_kept = [_num_kept(spec, len(keys)) for spec in groups]
    entries: list[PrefixEntry | None] = []
    run_lengths = [0] * len(groups)
    best = 0
    for i, key in enumerate(keys):
        entry = index.find(key, content_at(i))
        if any(i < kept and (entry is None or entry.blocks[g] is None) for g, kept in enumerate(num_kept)):
            break
        entries.append(entry)
        for g in range(len(groups)):
            is_present = entry is not None and entry.blocks[g] is not None
            run_lengths[g] = run_lengths[g] + 1 if is_present else 0
        boundary = (i + 1) * block_size
        if all(run_lengths[g] >= i + 1 - _dead(spec, boundary).stop for g, spec in enumerate(groups)):
            best = i + 1
    return PrefixHit(
        best * block_size, tuple(_blocks_of(entries[:best], g, spec, best) for g, spec in enumerate(groups))
    )


def _find_full(
    index: PrefixIndex, keys: Sequence[bytes], content_at: Callable[[int], tuple[int, ...]], block_size: int
) -> PrefixHit:
    """The same for a single FULL group, which most models are: an entry that exists has its one block."""
    blocks: list[Block | None] = []
    for i, key in enumerate(keys):
        entry = index.find(key, content_at(i))
        if entry is None:
            break
        blocks.append(entry.blocks[0])
    return PrefixHit(len(blocks) * block_size, (tuple(blocks),))


def _num_kept(spec: KVSpec, num_blocks: int) -> int:
    return num_blocks if spec.retention.kind is RetentionKind.FULL else spec.retention.sinks // spec.block_size


def _dead(spec: KVSpec, position: int) -> range:
    return spec.retention.dead_blocks(position, spec.block_size)


def _blocks_of(
    entries: Sequence[PrefixEntry | None], group_id: int, spec: KVSpec, num_blocks: int
) -> tuple[Block | None, ...]:
    dead = _dead(spec, num_blocks * spec.block_size)
    return tuple(None if i in dead or entry is None else entry.blocks[group_id] for i, entry in enumerate(entries))
