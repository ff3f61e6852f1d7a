"""What names the content of a block: its tokens, or, where only traces of a prompt are known, what stands for them."""

from collections.abc import Callable

from kvasir.core.sequence import Sequence

ContentOf = Callable[[Sequence, int, int], tuple[int, ...]]
"""(sequence, block index, block size) -> the numbers that name what is in the block.

Equal prefixes must give equal numbers, and different ones different: keys are made from them and hits compare them."""


def token_content(sequence: Sequence, index: int, block_size: int) -> tuple[int, ...]:
    """The block's own token ids: the only naming the engine uses."""
    return tuple(sequence.token_ids[index * block_size : (index + 1) * block_size])
