"""The kernel contract, written once: shapes, dtypes, aliasing.  ``reference`` and ``cpu`` implement it.

Shapes use T tokens of the step, R rows (sequences), H hidden size, N output features, Hq query heads, Hkv KV heads,
D head size, B block size.  All float tensors are fp32 unless said otherwise; all tensors are contiguous.

Exactness: on the ``cpu`` implementation the result for a token is bit-identical whatever T, R, chunking, thread count
and block ids are; every sum has an order fixed by positions alone.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, uint8

from kvasir.kv.format_spec import KVDtype
from kvasir.kv.retention import Retention

if TYPE_CHECKING:
    from kvasir.kernels.sparse import SparseStep


@dataclass(frozen=True, slots=True)
class RowStyle:
    """How a linear layer wants its input rows.

    ``is_quantised``: int8 codes with one scale per row, else fp32.  ``rotation``: size of the block-diagonal
    orthonormal Hadamard applied to the row first (a power of two dividing the row length; 0 for none).
    """

    is_quantised: bool
    rotation: int = 0


@dataclass(slots=True)
class Rows:
    """Input of a linear layer: ``data`` [T, K] int8 with ``scale`` [T] fp32 (value = code * scale), or fp32 with None.

    scale = max|x| / 127, code = round-half-even(x * (127 / max|x|)), every operation in fp32.  A row whose max|x| is
    below 2^-116 (its inverse would overflow) counts as all zeros: scale 0 and codes 0.
    A row with a non-finite value has scale NaN (so that it stays visible as NaN, in that row alone).
    """

    data: Tensor
    scale: Tensor | None = None


@dataclass(slots=True)
class Product:
    """Output of a linear layer before its epilogue.

    ``data`` [T, N] is int32 (value = data * row_scale[t] * col_scale[n] + bias[n], multiplied in that order in fp32)
    or fp32 (value = data + bias[n]) with both scales None.
    """

    data: Tensor
    row_scale: Tensor | None = None
    col_scale: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConstants:
    """What calibration found out about the KV heads of a store, in store order; fp32; None where there is nothing.

    k_center    [h, D]: mean of K after RoPE.  Taken off before int4 encodes K: the same for every token, so a query's
                scores all move by q . k_center and softmax does not see it.
    k_sink      [h, D]: K of a sequence's first token, where attention rests.  int4 takes it off instead of k_center
                where it leaves less, and adds the difference to the score of such a token: exact as well.
    k_feedback  [h, D, D]: shapes int4's rounding error of rotated K, see ``quantise_groups``
    v_sink      [h, D]: V of a sequence's first token, taken off before int4 encodes V where it leaves less, and given
                back times the weight of such tokens
    k_scale     [h]: value of one unit of an fp8 K code
    v_scale     [h]: the same of V
    """

    k_center: Tensor | None = None
    k_sink: Tensor | None = None
    k_feedback: Tensor | None = None
    v_sink: Tensor | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None


@dataclass(slots=True)
class Int8Weights:
    """The int8 codes of a linear layer [N, K], each in [-127, 127], where N is ``num_columns`` and K is ``width``.

    ``codes`` is either int8 [N, K], as they came, or packed: uint8 [ceil(N / 16), ceil(K / 4), 16, 4] of code + 128,
    with code 0 beyond N and K.  Every implementation takes both.  Never changed after it is made: ``prepared`` is where
    an implementation keeps its own view of the codes.
    """

    codes: Tensor
    num_columns: int
    width: int
    prepared: object = field(default=None, init=False, repr=False, compare=False)

    @property
    def is_packed(self) -> bool:
        return self.codes.dtype is uint8


@dataclass(slots=True)
class Best:
    """Per row the largest value of a product, ``values`` fp32 [T], and its lowest ``columns`` int64 [T].

    Where a value of a row is NaN, ``values`` is NaN and ``columns`` means nothing.
    """

    columns: Tensor
    values: Tensor


@dataclass(slots=True)
class KeyBounds:
    """``tensor`` bf16 [num_blocks, h, 2, D]: the least and the largest value of each channel of a full block's keys.
    ``flat``: the same store as one KV head of num_blocks * h blocks; head i of block b is block b * h + i there.  One
    for all heads, or one for each where heads have constants of their own."""

    tensor: Tensor
    flat: "tuple[LayerKV, ...]" = ()


@dataclass(slots=True)
class LayerKV:
    """The store of one (group, layer): the group's tensors of this layer, in ``KVSpec.tile_tensors`` order.

    ``heads`` int32 [h]: the model's KV head numbers, in store order, out of ``num_kv_heads`` of the whole model.
    Each tensor is [num_blocks, h, *tile] for heads of ``head_dim`` channels in blocks of ``block_size`` tokens.
    Never changed after it is made: ``prepared`` is where an implementation keeps its own view of the tensors.
    """

    heads: Tensor
    num_kv_heads: int
    head_dim: int
    block_size: int
    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]
    k_dtype: KVDtype
    v_dtype: KVDtype
    constants: HeadConstants = field(default_factory=HeadConstants)
    bounds: KeyBounds | None = field(default=None, repr=False, compare=False)
    prepared: object = field(default=None, init=False, repr=False, compare=False)


@dataclass(slots=True)
class AttentionPlan:
    """Where the step's tokens are and what they see, for one group; made once per step, used by every layer.

    query_start   int32 [R + 1]: row r owns tokens [query_start[r], query_start[r + 1])
    first_position int32 [R]: position of the row's first token in its sequence
    block_table   int32 [R, max_blocks]: entries of blocks nobody sees may hold anything, -1 where nothing is, and are
                  never read
    slots         int64 [T]: where token t is written: block_id * B + offset

    sealed        int64 [n] or None: blocks of a store with bounds whose last token this step writes
    sparse        how some tokens read chosen blocks only (``kernels/sparse.py``); None: all read everything

    A token is written before any query attends.  Never changed after its first use: ``prepared`` is where an
    implementation keeps the work list it derives once for all layers.
    """

    query_start: Tensor
    first_position: Tensor
    block_table: Tensor
    slots: Tensor
    block_size: int
    retention: Retention
    sealed: Tensor | None = None
    sparse: "SparseStep | None" = None
    prepared: object = field(default=None, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class HeadShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(slots=True)
class HeadNorms:
    """RMSNorm weights [D] applied to every query and key head before RoPE (Qwen3)."""

    q: Tensor
    k: Tensor
    eps: float


class Kernels(Protocol):
    """Everything a decoder layer does besides its products with floating-point weights."""

    name: str

    def pack(self, codes: Tensor) -> Int8Weights:
        """``codes`` int8 [N, K] in the order this implementation reads them fastest; they may be kept as they are."""
        ...

    def multiply(self, rows: Rows, weights: Int8Weights, out: Tensor) -> None:
        """``out`` int32 [T, N] = codes of ``rows`` [T, K] times those of ``weights``, exactly; scales are left out."""
        ...

    def best_columns(self, rows: Rows, weights: Int8Weights, scale: Tensor, bias: Tensor | None) -> Best:
        """The largest value of each row of the product with ``scale`` [N] and ``bias`` [N], which is never stored."""
        ...

    def norm_rows(self, x: Tensor, weight: Tensor, eps: float, style: RowStyle) -> Rows:
        """RMSNorm of ``x`` [T, H], then ``style``.  ``x`` is not changed."""
        ...

    def add_norm_rows(self, residual: Tensor, product: Product, weight: Tensor, eps: float, style: RowStyle) -> Rows:
        """``residual`` [T, H] += product (in place), then ``norm_rows`` of it."""
        ...

    def add_product(self, residual: Tensor, product: Product) -> None:
        """``residual`` [T, H] += product, in place."""
        ...

    def rotate_rows(self, x: Tensor, style: RowStyle) -> Rows:
        """``style`` applied to ``x`` [T, K]; ``x`` may be returned as it is when the style asks for nothing."""
        ...

    def swiglu_rows(self, product: Product, style: RowStyle) -> Rows:
        """``product`` is [T, 2 I] with gate first, then up: silu(gate) * up, then ``style``: rows of length I."""
        ...

    def qkv_write(
        self,
        product: Product,
        shape: HeadShape,
        norms: HeadNorms | None,
        rope: tuple[Tensor, Tensor],
        targets: list[tuple[LayerKV, AttentionPlan]],
    ) -> Tensor:
        """Finish the q/k/v product [T, (Hq + 2 Hkv) D], write K and V into the store, return q [T, Hq, D].

        Order: scales, bias, head norms, RoPE (half-split: pairs (i, i + D/2)) with ``rope`` = (cos, sin) each
        [T, D/2], already gathered by position.  K after RoPE and V are encoded into ``targets`` at the plans' slots;
        the targets' heads together are all KV heads, each once.
        """
        ...

    def attend(self, q: Tensor, kv: LayerKV, plan: AttentionPlan, scale: float, out: Tensor) -> None:
        """Causal attention of ``q`` [T, Hq, D] over the paged cache for the KV heads of ``kv``.

        The query at position i sees [retention.first_visible(i), i] and the sinks [0, retention.sinks) up to i.  Query
        head h reads KV head h // (Hq / Hkv).
        Writes ``out`` [T, Hq, D] for those query heads only; other heads of ``out`` are left alone.
        """
        ...

    def select_blocks(self, q: Tensor, bounds: Tensor, block_table: Tensor, num_blocks: Tensor, out: Tensor) -> None:
        """The L blocks that each of S rows reads of each of h heads; L is the width of ``out``.

        ``q`` [S, h, G, D]: the queries of each head.  ``bounds`` as in ``KeyBounds``.  Row s sees blocks
        [0, num_blocks[s]) (int32 [S], more than L) of its line in ``block_table`` int32 [S, W].
        Writes ``out`` int32 [S * h, L], block id * h + head, oldest first: the first block, the latest, and of the
        others those with the largest max over the head's queries of sum_d max(q_d * least_d, q_d * largest_d); of
        equal ones the older.  A sum that is no number counts as infinite.
        """
        ...

    def copy_blocks(self, tensors: tuple[Tensor, ...], sources: Tensor, targets: Tensor) -> None:
        """Copy blocks ``sources[i]`` -> ``targets[i]`` (int64 [C]) in each [num_blocks, ...] tensor, in place.

        No target is named twice, and no target is also a source.
        """
        ...
