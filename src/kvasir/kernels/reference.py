"""The kernels in plain torch, slow and obvious: the oracle of every other implementation, and the fallback."""

import torch
from torch import Tensor

from kvasir.formats.registry import FORMATS
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
from kvasir.kernels.library_product import multiply_exactly
from kvasir.kernels.quantiser import quantise_rows
from kvasir.kernels.rotation import hadamard

_QUERIES_AT_ONCE = 256


class ReferenceKernels:
    """Sums, norms, rotations and attention run in fp64 and are rounded to fp32 once, at the end of each call.

    torch may order a sum by the shape of the whole tensor; in fp64 that moves results by 1e-16, which the final
    rounding hides.  Elementwise steps the contract spells out in fp32 (scales, bias, quantise) run in fp32.
    """

    name = "reference"

    def pack(self, codes: Tensor) -> Int8Weights:
        return Int8Weights(codes, *codes.shape)

    def multiply(self, rows: Rows, weights: Int8Weights, out: Tensor) -> None:
        multiply_exactly(rows.data, _unpacked(weights), out)

    def best_columns(self, rows: Rows, weights: Int8Weights, scale: Tensor, bias: Tensor | None) -> Best:
        data = rows.data.new_empty(len(rows.data), weights.num_columns, dtype=torch.int32)
        self.multiply(rows, weights, data)
        values = _values(Product(data, rows.scale, scale, bias))
        return Best(values.argmax(dim=1), values.amax(dim=1))

    def norm_rows(self, x: Tensor, weight: Tensor, eps: float, style: RowStyle) -> Rows:
        return _styled(_rms_norm(x.double(), weight, eps), style)

    def add_norm_rows(self, residual: Tensor, product: Product, weight: Tensor, eps: float, style: RowStyle) -> Rows:
        self.add_product(residual, product)
        return self.norm_rows(residual, weight, eps, style)

    def add_product(self, residual: Tensor, product: Product) -> None:
        residual += _values(product)

    def rotate_rows(self, x: Tensor, style: RowStyle) -> Rows:
        return _styled(x.double(), style)

    def swiglu_rows(self, product: Product, style: RowStyle) -> Rows:
        gate, up = _values(product).double().chunk(2, dim=-1)
        return _styled(torch.nn.functional.silu(gate) * up, style)

    def qkv_write(
        self,
        product: Product,
        shape: HeadShape,
        norms: HeadNorms | None,
        rope: tuple[Tensor, Tensor],
        targets: list[tuple[LayerKV, AttentionPlan]],
    ) -> Tensor:
        heads = _values(product).double().unflatten(-1, (-1, shape.head_dim))
        q, k, v = heads.split([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
        if norms is not None:
            q = _rms_norm(q, norms.q, norms.eps)
            k = _rms_norm(k, norms.k, norms.eps)
        q, k = _rotate_half(q, rope).float(), _rotate_half(k, rope).float()
        for kv, plan in targets:
            FORMATS[kv.k_dtype].encode_k(kv, plan.slots, k[:, kv.heads.long()])
            FORMATS[kv.v_dtype].encode_v(kv, plan.slots, v[:, kv.heads.long()].float())
        return q

    def attend(self, q: Tensor, kv: LayerKV, plan: AttentionPlan, scale: float, out: Tensor) -> None:
        for row, position in enumerate(plan.first_position.tolist()):
            start, end = plan.query_start[row].item(), plan.query_start[row + 1].item()
            for chunk in range(int(start), int(end), _QUERIES_AT_ONCE):
                stop = min(int(end), chunk + _QUERIES_AT_ONCE)
                first = position + chunk - int(start)
                _attend_row(q[chunk:stop], kv, plan, plan.block_table[row], first, scale, out[chunk:stop])

    def select_blocks(self, q: Tensor, bounds: Tensor, block_table: Tensor, num_blocks: Tensor, out: Tensor) -> None:
        num_heads, limit = q.shape[1], out.shape[1]
        for row, count in enumerate(num_blocks.tolist()):
            blocks = block_table[row, :count].long()
            least, largest = bounds[blocks].double().unbind(2)
            for head in range(num_heads):
                above, below = q[row, head].double().clamp(min=0.0), q[row, head].double().clamp(max=0.0)
                scores = (above @ largest[:, head].T + below @ least[:, head].T).amax(dim=0)
                scores = scores.nan_to_num(nan=float("inf"), posinf=float("inf"), neginf=float("-inf"))
                between = scores[1:-1].argsort(descending=True, stable=True)[: limit - 2].sort().values + 1
                chosen = torch.cat([torch.zeros(1, dtype=torch.int64), between, torch.tensor([count - 1])])
                out[row * num_heads + head] = (blocks[chosen] * num_heads + head).int()

    def copy_blocks(self, tensors: tuple[Tensor, ...], sources: Tensor, targets: Tensor) -> None:
        for tensor in tensors:
            tensor[targets] = tensor[sources]


def _unpacked(weights: Int8Weights) -> Tensor:
    if not weights.is_packed:
        return weights.codes
    codes = (weights.codes.to(torch.int16) - 128).to(torch.int8)
    rows = codes.permute(0, 2, 1, 3).reshape(codes.shape[0] * 16, -1)
    return rows[: weights.num_columns, : weights.width].contiguous()


def _values(product: Product) -> Tensor:
    values = product.data.float()
    if product.row_scale is not None and product.col_scale is not None:
        values = values * product.row_scale[:, None] * product.col_scale
    return values if product.bias is None else values + product.bias


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight.double()


def _rotate_half(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (table.double().unsqueeze(1) for table in rope)
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def _styled(x: Tensor, style: RowStyle) -> Rows:
    if style.rotation:
        x = (x.unflatten(-1, (-1, style.rotation)) @ hadamard(style.rotation)).flatten(-2)
    rows = x.float()
    return Rows(*quantise_rows(rows)) if style.is_quantised else Rows(rows)


def _attend_row(
    q: Tensor, kv: LayerKV, plan: AttentionPlan, table: Tensor, first_position: int, scale: float, out: Tensor
) -> None:
    """Queries ``q`` [n, Hq, D] of one sequence at positions ``first_position`` and on."""
    size, rule = plan.block_size, plan.retention
    end = first_position + len(q)
    num_sinks = min(rule.sinks, end)
    oldest = min(rule.first_visible(first_position), end)
    positions = torch.cat([torch.arange(num_sinks), torch.arange(oldest, end)])
    indices, place = (positions // size).unique(return_inverse=True)
    rows = place * size + positions % size
    blocks = table[indices].long()
    k = FORMATS[kv.k_dtype].decode_k(kv, blocks)[:, rows].double()
    v = FORMATS[kv.v_dtype].decode_v(kv, blocks)[:, rows].double()

    queries = torch.arange(first_position, end)
    lowest = torch.tensor([rule.first_visible(int(i)) for i in queries])
    is_kept = (positions < num_sinks) | (positions >= lowest[:, None])
    is_seen = (positions <= queries[:, None]) & is_kept

    per_kv_head = q.shape[1] // kv.num_kv_heads
    for index, kv_head in enumerate(kv.heads.tolist()):
        for head in range(kv_head * per_kv_head, (kv_head + 1) * per_kv_head):
            scores = (q[:, head].double() @ k[index].T * scale).masked_fill(~is_seen, float("-inf"))
            out[:, head] = _weighted_sum(torch.softmax(scores, dim=-1), v[index], is_seen).to(out.dtype)


def _weighted_sum(weights: Tensor, v: Tensor, is_seen: Tensor) -> Tensor:
    if v.isfinite().all():
        return weights @ v
    # 0 * NaN is NaN: a value that a query does not see must be left out, not weighted by zero.
    rows = [weight[seen] @ v[seen] for weight, seen in zip(weights, is_seen, strict=True)]
    return torch.stack(rows)
