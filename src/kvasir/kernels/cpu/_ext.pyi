"""Types of the compiled extension; what each call does stands in kernels/interface.py."""

from collections.abc import Sequence

class LayerView:
    def __init__(
        self,
        k: Sequence[int],
        v: Sequence[int],
        k_dtype: int,
        v_dtype: int,
        heads: Sequence[int],
        block_size: int,
        head_dim: int,
        num_blocks: int,
        constants: Sequence[int],
        /,
    ) -> None: ...

class WorkList:
    num_units: int
    group: int
    num_tokens: int
    def __init__(self, shape: Sequence[int], query_start: int, first_position: int, table: int, /) -> None: ...

_RowCodes = tuple[int, int, int]
_Product = tuple[int, int, int, int, int]
_Style = tuple[int, int, int]

class Context:
    isa: str
    has_openmp: bool
    def __init__(self, threads: int, isa: str, own_threads: bool, /) -> None: ...
    def norm_rows(self, x: int, rows: int, width: int, weight: int, eps: float, style: _Style, /) -> None: ...
    def add_norm_rows(
        self, x: int, rows: int, product: _Product, weight: int, eps: float, style: _Style, /
    ) -> None: ...
    def add_product(self, x: int, rows: int, product: _Product, /) -> None: ...
    def rotate_rows(self, x: int, rows: int, width: int, style: _Style, /) -> None: ...
    def swiglu_rows(self, rows: int, product: _Product, style: _Style, /) -> None: ...
    def qkv_write(
        self,
        product: _Product,
        rows: int,
        num_heads: int,
        num_kv_heads: int,
        norms: tuple[int, int, float],
        cos: int,
        sin: int,
        q: int,
        targets: list[tuple[LayerView, int]],
        /,
    ) -> None: ...
    def attend(self, work: WorkList, layer: LayerView, q: int, out: int, num_heads: int, scale: float, /) -> None: ...
    def pack_codes(self, codes: int, num_columns: int, width: int, packed: int, /) -> None: ...
    def multiply(self, rows: _RowCodes, weights: int, num_columns: int, is_packed: bool, out: int, /) -> None: ...
    def multiply_best(
        self,
        rows: _RowCodes,
        row_scale: int,
        weights: int,
        num_columns: int,
        col_scale: int,
        bias: int,
        columns: int,
        values: int,
        /,
    ) -> None: ...
    def copy_blocks(
        self,
        tensors: Sequence[int],
        block_bytes: Sequence[int],
        sources: int,
        targets: int,
        count: int,
        num_blocks: int,
        /,
    ) -> None: ...
    def select_blocks(
        self, shape: Sequence[int], q: int, bounds: int, table: int, num_blocks: int, out: int, /
    ) -> None: ...
    def multiply_adds(self, rounds: int, /) -> int: ...
    def exponentials(self, x: int, exp2_out: int, exp_out: int, count: int, /) -> None: ...
