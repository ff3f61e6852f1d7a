"""``KVFormat``: how a format writes K or V rows into tiles and reads them back; the reference uses exactly this."""

from typing import Protocol

from torch import Tensor

from kvasir.kernels.interface import LayerKV


class KVFormat(Protocol):
    """One number format.  K and V are chosen apart, and their tiles differ: K [D, B], V [B, D].

    The format's store tensors are ``kv.k`` or ``kv.v``, each [num_blocks, h, *tile]; its calibrated constants are in
    ``kv.constants``.  A token is encoded when it is written, on its own: the codes of a slot depend on that token's row
    and on nothing else.
    """

    def encode_k(self, kv: LayerKV, slots: Tensor, rows: Tensor) -> None:
        """Write ``rows`` [T, h, D] fp32 to ``slots`` int64 [T] (block_id * B + offset) of ``kv.k``, in place."""
        ...

    def encode_v(self, kv: LayerKV, slots: Tensor, rows: Tensor) -> None:
        """As ``encode_k``, for ``kv.v``."""
        ...

    def decode_k(self, kv: LayerKV, blocks: Tensor) -> Tensor:
        """The tokens of ``blocks`` int64 [n], in order: fp32 [h, n * B, D]."""
        ...

    def decode_v(self, kv: LayerKV, blocks: Tensor) -> Tensor:
        """As ``decode_k``, for ``kv.v``."""
        ...
