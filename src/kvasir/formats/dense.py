"""Plain floating point: fp32, bf16 and fp16.  One tensor for K, one for V, values rounded to nearest even."""

from torch import Tensor

from kvasir.kernels.interface import LayerKV


class DenseFormat:
    """All three dense formats: the tensors' dtype says which one it is."""

    def encode_k(self, kv: LayerKV, slots: Tensor, rows: Tensor) -> None:
        (tile,) = kv.k
        block_size = tile.shape[-1]
        # Advanced indices around a slice: the indexed axis comes first, so the left side is [T, h, D].
        tile[slots // block_size, :, :, slots % block_size] = rows.to(tile.dtype)

    def encode_v(self, kv: LayerKV, slots: Tensor, rows: Tensor) -> None:
        (tile,) = kv.v
        block_size = tile.shape[-2]
        tile[slots // block_size, :, slots % block_size] = rows.to(tile.dtype)

    def decode_k(self, kv: LayerKV, blocks: Tensor) -> Tensor:
        (tile,) = kv.k
        return tile[blocks].permute(1, 0, 3, 2).flatten(1, 2).float()

    def decode_v(self, kv: LayerKV, blocks: Tensor) -> Tensor:
        (tile,) = kv.v
        return tile[blocks].transpose(0, 1).flatten(1, 2).float()
