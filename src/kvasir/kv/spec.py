"""``KVSpec``: the only place where KV bytes are computed.  Allocator, admission, planner and metrics all ask here."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from kvasir.kv.format_spec import K_TILES, V_TILES, KVDtype, TensorSpec, check_head_dim
from kvasir.kv.retention import FULL, Retention, RetentionKind

BLOCK_SIZES = (16, 32, 64)


class BlockArithmetic(ABC):
    """What a store of blocks costs, given its tiles.  ``KVSpec`` is our store; the planner describes others'."""

    __slots__ = ()

    block_size: int
    retention: Retention

    @property
    @abstractmethod
    def num_pairs(self) -> int:
        """How many (layer, kv_head) pairs the group has."""

    @property
    @abstractmethod
    def tile_tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors of one block of one head: K's, then V's."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers and heads of the group, metadata included."""
        return self.num_pairs * sum(tensor.num_bytes for tensor in self.tile_tensors)

    @property
    def bytes_per_token(self) -> float:
        return self.block_bytes / self.block_size

    def pool_bytes(self, num_blocks: int) -> int:
        """Bytes the store allocates for ``num_blocks`` blocks: exact, not an estimate."""
        return num_blocks * self.block_bytes

    def max_blocks(self, num_tokens: int, chunk_tokens: int) -> int:
        """The most blocks one sequence of ``num_tokens`` holds at once."""
        return self.retention.max_blocks(num_tokens, chunk_tokens, self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSpec(BlockArithmetic):
    """The KV store of one group.

    ``heads_by_layer[l]`` are the KV heads of layer l that belong to the group (empty when none).  ``head_dim`` is the
    size of K and V heads.  One block holds ``block_size`` token slots of every (layer, head) pair of the group.
    """

    block_size: int
    head_dim: int
    heads_by_layer: tuple[tuple[int, ...], ...]
    k_dtype: KVDtype
    v_dtype: KVDtype
    retention: Retention = FULL
    has_bounds: bool = False

    def __post_init__(self) -> None:
        if self.block_size % 16 or self.block_size <= 0:
            raise ValueError(f"block size {self.block_size} is not a multiple of 16")
        if self.retention.block_size not in (0, self.block_size):
            raise ValueError(f"{self.retention} was fitted to another block size than {self.block_size}")
        if self.retention.kind is RetentionKind.WINDOW and not self.retention.block_size:
            raise ValueError(f"{self.retention} has not been fitted to blocks of {self.block_size}")
        if self.num_pairs == 0:
            raise ValueError("a group needs at least one (layer, kv_head) pair")
        check_head_dim(self.k_dtype, self.head_dim)
        check_head_dim(self.v_dtype, self.head_dim)

    @property
    def num_pairs(self) -> int:
        return sum(len(heads) for heads in self.heads_by_layer)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The (layer, kv_head) pairs, layer by layer."""
        return tuple((layer, head) for layer, heads in enumerate(self.heads_by_layer) for head in heads)

    @property
    def tile_tensors(self) -> tuple[TensorSpec, ...]:
        k_tensors = K_TILES[self.k_dtype](self.head_dim, self.block_size)
        bounds = (TensorSpec("k_bounds", "bfloat16", (2, self.head_dim)),) if self.has_bounds else ()
        return k_tensors + V_TILES[self.v_dtype](self.head_dim, self.block_size) + bounds

    def tensor_shape(self, tensor: TensorSpec, layer: int, num_blocks: int) -> tuple[int, ...]:
        """Shape of ``tensor`` in the layer-major store: [num_blocks, heads of this layer in the group, *tile]."""
        return (num_blocks, len(self.heads_by_layer[layer]), *tensor.shape)
