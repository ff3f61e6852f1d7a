"""``SparseRead``: decode steps read the likeliest blocks of a head's cache only; and what that means for reuse."""

from dataclasses import dataclass

from kvasir.core.errors import ConfigError
from kvasir.core.sequence import Sequence
from kvasir.kv.layout import KVLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseRead:
    """A query after the prompt that sees more than ``num_blocks`` blocks reads so many of them: the first, the latest,
    and those with the highest bound of their scores.  Queries of the prompt read everything."""

    num_blocks: int

    def __post_init__(self) -> None:
        if self.num_blocks < 2:
            raise ConfigError(
                f"--kv-sparse-read blocks={self.num_blocks} is too few: the first and the latest block are always "
                "read, so 2 is the least."
            )

    def __str__(self) -> str:
        """As it is written in a flag."""
        return f"blocks={self.num_blocks}"


def parse_sparse_read(text: str) -> SparseRead:
    """``blocks=64``.  Raises ``ValueError`` for anything else."""
    name, _, value = text.strip().lower().partition("=")
    if name != "blocks" or not value.isdecimal():
        raise ValueError("off or blocks=NUMBER is expected, for example blocks=64")
    return SparseRead(num_blocks=int(value))


def check_sparse_read(rule: SparseRead | None, layout: KVLayout) -> None:
    """Raises ``ConfigError`` when no head of ``layout`` could read sparsely."""
    if rule is not None and all(spec.retention.window for spec in layout.groups):
        raise ConfigError(
            f"--kv-sparse-read {rule} is for heads that keep the whole context, but every head has a window (the "
            "model's own, or from --kv-retention or --head-profile); leave one out."
        )


def num_alike_blocks(sequence: Sequence, block_size: int, rule: SparseRead | None) -> int:
    """How many whole blocks of ``sequence`` hold what any sequence with these tokens has in them.

    What is computed after the prompt, and from behind the first ``rule.num_blocks`` blocks, comes from a query that did
    not read everything; the same tokens in another prompt would."""
    whole = sequence.num_tokens // block_size
    if rule is None:
        return whole
    return min(whole, max(sequence.num_prompt_tokens // block_size, rule.num_blocks))
