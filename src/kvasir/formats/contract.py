"""``KVFormat``: how a format writes K or V rows into tiles and reads them back; the reference uses exactly this."""

from typing import Protocol

from torch import Tensor


class KVFormat(Protocol):
    """One number format.  K and V are chosen apart, and their tiles differ: K [D, B], V [B, D].

    ``tensors`` are the format's store tensors of one layer, each [num_blocks, h, *tile].  A token is encoded when it is
    written, on its own: the codes of a slot depend on that token's row and on nothing else.
    """

    def encode_k(self, tensors: tuple[Tensor, ...], slots: Tensor, rows: Tensor) -> None:
        """Write ``rows`` [T, h, D] fp32 to ``slots`` int64 [T] (block_id * B + offset) of ``tensors``, in place."""
        ...

    def encode_v(self, tensors: tuple[Tensor, ...], slots: Tensor, rows: Tensor) -> None:
        """As ``encode_k``, for V tiles."""
        ...

    def decode_k(self, tensors: tuple[Tensor, ...], blocks: Tensor) -> Tensor:
        """The tokens of ``blocks`` int64 [n], in order: fp32 [h, n * B, D]."""
        ...

    def decode_v(self, tensors: tuple[Tensor, ...], blocks: Tensor) -> Tensor:
        """As ``decode_k``, for V tiles."""
        ...
