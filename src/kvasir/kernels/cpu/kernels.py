"""``CpuKernels``: the kernel interface on the compiled extension."""

import os
import time

import torch
from torch import Tensor

from kvasir.kernels.cpu import _ext
from kvasir.kernels.cpu.views import (
    address,
    layer_view,
    packed_size,
    product_numbers,
    row_numbers,
    rows_for,
    weights_numbers,
    work_list,
)
from kvasir.kernels.interface import (
    AttentionPlan,
    Best,
    HeadNorms,
    HeadShape,
    Int8Weights,
    LayerKV,
    Product,
    Rows,
    RowStyle,
)
from kvasir.kernels.library_product import has_matrix_tiles, multiply_exactly

ISA_VARIABLE = "KVASIR_ISA"
"""Names the instruction set instead of the best one, for tests and comparisons: avx512vnni, avx512, avxvnni, avx2,
neondot, neon or plain."""

FEW_ROWS = 8
"""Where weights are kept for the library's tiles: up to so many rows, reading them once is all the time there is."""


class CpuKernels:
    """Runs on ``threads`` threads, the calling one among them; results do not depend on how many.

    ``isa`` names an instruction set, None for the environment's choice or the best.  ``own_threads``: a pool of its
    own, or torch's OpenMP threads where they can be found; None takes torch's where torch computes integer products.
    """

    name = "cpu"

    def __init__(self, threads: int, *, isa: str | None = None, own_threads: bool | None = None) -> None:
        wanted = os.environ.get(ISA_VARIABLE, "") if isa is None else isa
        self._prefers_library = not wanted and has_matrix_tiles()
        if own_threads is None:
            own_threads = not self._prefers_library
        self._context = _ext.Context(threads, wanted, own_threads)
        self._threads = threads

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return self._context.isa

    @property
    def shares_torch_threads(self) -> bool:
        """Whether the kernels run on torch's OpenMP threads; False for one thread or a pool of our own."""
        return self._context.has_openmp

    def fma_ops_per_s(self) -> float:
        """The most this machine does with these instructions on all of the kernels' threads, an FMA being two: probed
        on one core for a few milliseconds, times ``threads``."""
        rounds, best = 200_000, 0.0
        for _ in range(5):
            start = time.perf_counter()
            count = self._context.multiply_adds(rounds)
            best = max(best, 2 * count / (time.perf_counter() - start))
        return best * self._threads

    def pack(self, codes: Tensor) -> Int8Weights:
        num_columns, width = codes.shape
        codes_at = address(codes, torch.int8, (num_columns, width), "the codes")
        if self._prefers_library:
            return Int8Weights(codes, num_columns, width)
        packed = torch.empty(packed_size(num_columns, width), dtype=torch.uint8)
        self._context.pack_codes(codes_at, num_columns, width, packed.data_ptr())
        return Int8Weights(packed, num_columns, width)

    def multiply(self, rows: Rows, weights: Int8Weights, out: Tensor) -> None:
        num_rows = rows.data.shape[0]
        codes_at, num_columns, is_packed = weights_numbers(weights)
        if self._prefers_library and not is_packed and num_rows > FEW_ROWS:
            multiply_exactly(rows.data, weights.codes, out)
            return
        out_at = address(out, torch.int32, (num_rows, num_columns), "the product")
        self._context.multiply(row_numbers(rows, weights.width), codes_at, num_columns, is_packed, out_at)

    def best_columns(self, rows: Rows, weights: Int8Weights, scale: Tensor, bias: Tensor | None) -> Best:
        num_rows = rows.data.shape[0]
        codes_at, num_columns, is_packed = weights_numbers(weights)
        if not is_packed:
            data = torch.empty(num_rows, num_columns, dtype=torch.int32)
            self.multiply(rows, weights, data)
            values = torch.zeros(num_rows, num_columns)
            self.add_product(values, Product(data, rows.scale, scale, bias))
            return Best(values.argmax(dim=1), values.amax(dim=1))
        best = Best(torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows))
        assert rows.scale is not None
        self._context.multiply_best(
            row_numbers(rows, weights.width),
            address(rows.scale, torch.float32, (num_rows,), "the rows' scale"),
            codes_at,
            num_columns,
            address(scale, torch.float32, (num_columns,), "the columns' scale"),
            0 if bias is None else address(bias, torch.float32, (num_columns,), "the bias"),
            best.columns.data_ptr(),
            best.values.data_ptr(),
        )
        return best

    def norm_rows(self, x: Tensor, weight: Tensor, eps: float, style: RowStyle) -> Rows:
        num_rows, width = x.shape
        rows, numbers = rows_for(style, num_rows, width)
        x_at = address(x, torch.float32, (num_rows, width), "x")
        weight_at = address(weight, torch.float32, (width,), "the norm's weight")
        self._context.norm_rows(x_at, num_rows, width, weight_at, eps, numbers)
        return rows

    def add_norm_rows(self, residual: Tensor, product: Product, weight: Tensor, eps: float, style: RowStyle) -> Rows:
        num_rows, width = residual.shape
        rows, numbers = rows_for(style, num_rows, width)
        residual_at = address(residual, torch.float32, (num_rows, width), "the residual")
        weight_at = address(weight, torch.float32, (width,), "the norm's weight")
        added = product_numbers(product, num_rows, width)
        self._context.add_norm_rows(residual_at, num_rows, added, weight_at, eps, numbers)
        return rows

    def add_product(self, residual: Tensor, product: Product) -> None:
        num_rows, width = residual.shape
        residual_at = address(residual, torch.float32, (num_rows, width), "the residual")
        self._context.add_product(residual_at, num_rows, product_numbers(product, num_rows, width))

    def rotate_rows(self, x: Tensor, style: RowStyle) -> Rows:
        num_rows, width = x.shape
        x_at = address(x, torch.float32, (num_rows, width), "x")
        if not style.is_quantised and not style.rotation:
            return Rows(x)
        rows, numbers = rows_for(style, num_rows, width)
        self._context.rotate_rows(x_at, num_rows, width, numbers)
        return rows

    def swiglu_rows(self, product: Product, style: RowStyle) -> Rows:
        num_rows, width = product.data.shape
        if width % 2:
            raise ValueError(f"a gate-and-up product has an even width, not {width}.")
        rows, numbers = rows_for(style, num_rows, width // 2)
        self._context.swiglu_rows(num_rows, product_numbers(product, num_rows, width), numbers)
        return rows

    def qkv_write(
        self,
        product: Product,
        shape: HeadShape,
        norms: HeadNorms | None,
        rope: tuple[Tensor, Tensor],
        targets: list[tuple[LayerKV, AttentionPlan]],
    ) -> Tensor:
        num_rows, dim = product.data.shape[0], shape.head_dim
        if dim % 8:
            raise ValueError(f"the compiled kernels take head sizes that are multiples of 8, not {dim}.")
        if sum(kv.heads.shape[0] for kv, _ in targets) != shape.num_kv_heads:
            raise ValueError(f"the targets must hold each of the {shape.num_kv_heads} KV heads once.")
        pairs: list[tuple[_ext.LayerView, int]] = []
        for kv, plan in targets:
            if kv.head_dim != dim:
                raise ValueError(f"heads of {dim} channels do not fit a store of {kv.head_dim}.")
            pairs.append((layer_view(kv), address(plan.slots, torch.int64, (num_rows,), "slots")))
        numbers = product_numbers(product, num_rows, (shape.num_heads + 2 * shape.num_kv_heads) * dim)
        q = torch.empty(num_rows, shape.num_heads, dim)
        self._context.qkv_write(
            numbers,
            num_rows,
            shape.num_heads,
            shape.num_kv_heads,
            _norm_numbers(norms, dim),
            address(rope[0], torch.float32, (num_rows, dim // 2), "the cosines"),
            address(rope[1], torch.float32, (num_rows, dim // 2), "the sines"),
            q.data_ptr(),
            pairs,
        )
        return q

    def attend(self, q: Tensor, kv: LayerKV, plan: AttentionPlan, scale: float, out: Tensor) -> None:
        layer = layer_view(kv)
        num_heads = q.shape[1]
        work = work_list(plan, kv, num_heads, self._threads)
        shape = (work.num_tokens, num_heads, kv.head_dim)
        q_at, out_at = address(q, torch.float32, shape, "q"), address(out, torch.float32, shape, "out")
        self._context.attend(work, layer, q_at, out_at, num_heads, scale)

    def select_blocks(self, q: Tensor, bounds: Tensor, block_table: Tensor, num_blocks: Tensor, out: Tensor) -> None:
        num_rows, num_heads, group, dim = q.shape
        store_blocks, width = bounds.shape[0], block_table.shape[1]
        limit = out.shape[1]
        self._context.select_blocks(
            [num_rows, num_heads, group, dim, width, store_blocks, limit],
            address(q, torch.float32, (num_rows, num_heads, group, dim), "q"),
            address(bounds, torch.bfloat16, (store_blocks, num_heads, 2, dim), "the bounds"),
            address(block_table, torch.int32, (num_rows, width), "the block table"),
            address(num_blocks, torch.int32, (num_rows,), "num_blocks"),
            address(out, torch.int32, (num_rows * num_heads, limit), "out"),
        )

    def copy_blocks(self, tensors: tuple[Tensor, ...], sources: Tensor, targets: Tensor) -> None:
        num_blocks = {tensor.shape[0] for tensor in tensors}
        if len(num_blocks) != 1 or not all(tensor.is_contiguous() for tensor in tensors):
            raise ValueError("copy_blocks takes contiguous tensors with one number of blocks.")
        count = sources.shape[0]
        self._context.copy_blocks(
            [tensor.data_ptr() for tensor in tensors],
            [tensor.stride(0) * tensor.itemsize for tensor in tensors],
            address(sources, torch.int64, (count,), "sources"),
            address(targets, torch.int64, (count,), "targets"),
            count,
            num_blocks.pop(),
        )


def _norm_numbers(norms: HeadNorms | None, head_dim: int) -> tuple[int, int, float]:
    if norms is None:
        return 0, 0, 0.0
    q_at = address(norms.q, torch.float32, (head_dim,), "the query norm's weight")
    return q_at, address(norms.k, torch.float32, (head_dim,), "the key norm's weight"), norms.eps
