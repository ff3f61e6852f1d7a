"""Tensors checked and turned into the numbers the extension takes.  A refusal is one sentence with the shapes."""

import torch
from torch import Tensor

from kvasir.kernels.cpu import _ext
from kvasir.kernels.interface import AttentionPlan, Int8Weights, LayerKV, Product, Rows, RowStyle
from kvasir.kv.format_spec import K_TILES, V_TILES, KVDtype, TileRule
from kvasir.kv.retention import RetentionKind

DTYPE_CODES = {KVDtype.FP32: 0, KVDtype.BF16: 1, KVDtype.FP16: 2, KVDtype.INT8: 3, KVDtype.INT4: 4, KVDtype.FP8: 5}

ProductNumbers = tuple[int, int, int, int, int]
"""(data, row_scale, col_scale, bias, width): addresses, 0 for what is not there."""

RowNumbers = tuple[int, int, int]
"""(codes, number of rows, width)."""

WeightNumbers = tuple[int, int, bool]
"""(codes, number of columns, whether they are packed)."""

StyleNumbers = tuple[int, int, int]
"""(data, scale, rotation): addresses; scale 0 for dense rows."""


def address(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], what: str) -> int:
    """The address of ``tensor`` once it is what the kernels take it for."""
    if tensor.dtype is dtype and tensor.shape == shape and tensor.is_contiguous():
        return tensor.data_ptr()
    layout = "" if tensor.is_contiguous() else "non-contiguous "
    raise ValueError(
        f"{what} must be a contiguous {dtype} tensor of shape {list(shape)}, "
        f"not a {layout}{tensor.dtype} one of shape {list(tensor.shape)}."
    )


def product_numbers(product: Product, num_rows: int, width: int) -> ProductNumbers:
    shape = (num_rows, width)
    bias = 0 if product.bias is None else address(product.bias, torch.float32, (width,), "a product's bias")
    if product.row_scale is None or product.col_scale is None:
        if product.row_scale is not product.col_scale:
            raise ValueError("a product has both a row scale and a column scale, or neither.")
        return address(product.data, torch.float32, shape, "a product without scales"), 0, 0, bias, width
    return (
        address(product.data, torch.int32, shape, "a product with scales"),
        address(product.row_scale, torch.float32, (num_rows,), "a product's row scale"),
        address(product.col_scale, torch.float32, (width,), "a product's column scale"),
        bias,
        width,
    )


def row_numbers(rows: Rows, width: int) -> RowNumbers:
    num_rows = rows.data.shape[0]
    return address(rows.data, torch.int8, (num_rows, width), "the rows' codes"), num_rows, width


def packed_size(num_columns: int, width: int) -> tuple[int, int, int, int]:
    return -(-num_columns // 16), -(-width // 4), 16, 4


def weights_numbers(weights: Int8Weights) -> WeightNumbers:
    """Made and checked once, kept in ``weights.prepared``: it is asked for four times a layer in every step."""
    if isinstance(weights.prepared, tuple):
        return weights.prepared
    shape = (weights.num_columns, weights.width)
    if weights.is_packed:
        codes_at = address(weights.codes, torch.uint8, packed_size(*shape), "packed codes")
    else:
        codes_at = address(weights.codes, torch.int8, shape, "the codes")
    weights.prepared = numbers = (codes_at, weights.num_columns, weights.is_packed)
    return numbers


def rows_for(style: RowStyle, num_rows: int, width: int) -> tuple[Rows, StyleNumbers]:
    """Uninitialised rows of ``style`` and their numbers."""
    rotation = style.rotation
    if rotation and (rotation & (rotation - 1) or width % rotation):
        raise ValueError(f"a rotation must be a power of two that divides the row length {width}, not {rotation}.")
    if not style.is_quantised:
        data = torch.empty(num_rows, width)
        return Rows(data), (data.data_ptr(), 0, rotation)
    codes = torch.empty(num_rows, width, dtype=torch.int8)
    scale = torch.empty(num_rows)
    return Rows(codes, scale), (codes.data_ptr(), scale.data_ptr(), rotation)


def layer_view(kv: LayerKV) -> _ext.LayerView:
    """The store of a layer as the extension sees it; made and checked once per layer, kept in ``kv.prepared``."""
    if isinstance(kv.prepared, _ext.LayerView):
        return kv.prepared
    num_blocks, num_heads = kv.k[0].shape[:2]
    if kv.head_dim % 8 or not 8 <= kv.head_dim <= 512:
        raise ValueError(f"the compiled kernels take head sizes that are multiples of 8 up to 512, not {kv.head_dim}.")
    if kv.block_size % 16:
        raise ValueError(f"the compiled kernels take block sizes that are multiples of 16, not {kv.block_size}.")
    heads = kv.heads.tolist()
    if len(heads) != num_heads or not all(0 <= head < kv.num_kv_heads for head in heads):
        raise ValueError(f"a store of {num_heads} KV heads cannot hold heads {heads} of {kv.num_kv_heads}.")
    kv.prepared = view = _ext.LayerView(
        _addresses(kv, kv.k, K_TILES[kv.k_dtype], "K"),
        _addresses(kv, kv.v, V_TILES[kv.v_dtype], "V"),
        DTYPE_CODES[kv.k_dtype],
        DTYPE_CODES[kv.v_dtype],
        heads,
        kv.block_size,
        kv.head_dim,
        num_blocks,
        _constants(kv),
    )
    return view


def _constants(kv: LayerKV) -> list[int]:
    """Addresses of the heads' constants, in the order of the extension's ``Constants``; 0 for what there is not."""
    heads, dim, given = len(kv.heads), kv.head_dim, kv.constants
    for dtype, scale, what in ((kv.k_dtype, given.k_scale, "K"), (kv.v_dtype, given.v_scale, "V")):
        if dtype is KVDtype.FP8 and scale is None:
            raise ValueError(f"fp8 {what} has no scales; a store of fp8 is made with calibrated constants.")
    shapes = {
        "k_center": (heads, dim),
        "k_sink": (heads, dim),
        "k_feedback": (heads, dim, dim),
        "v_sink": (heads, dim),
        "k_scale": (heads,),
        "v_scale": (heads,),
    }
    found = []
    for name, shape in shapes.items():
        tensor = getattr(given, name)
        found.append(0 if tensor is None else address(tensor, torch.float32, shape, f"the constant {name}"))
    return found


def _addresses(kv: LayerKV, tensors: tuple[Tensor, ...], tiles: TileRule, what: str) -> list[int]:
    """One address per tensor of the format, each as ``KVSpec`` says."""
    leading = kv.k[0].shape[:2]
    return [
        address(tensor, getattr(torch, spec.dtype), (*leading, *spec.shape), f"the {what} store")
        for tensor, spec in zip(tensors, tiles(kv.head_dim, kv.block_size), strict=True)
    ]


def work_list(plan: AttentionPlan, kv: LayerKV, num_heads: int, threads: int) -> _ext.WorkList:
    """The attention work of a step; made and checked by the first layer, kept in ``plan.prepared``."""
    group = num_heads // kv.num_kv_heads
    if isinstance(plan.prepared, _ext.WorkList) and plan.prepared.group == group:
        return plan.prepared
    if num_heads % kv.num_kv_heads:
        raise ValueError(f"{num_heads} query heads cannot share {kv.num_kv_heads} KV heads evenly.")
    num_rows, table_width = plan.block_table.shape
    num_blocks, num_store_heads = kv.k[0].shape[:2]
    block_size = kv.block_size
    if plan.block_size != block_size:
        raise ValueError(f"the plan has blocks of {plan.block_size} tokens, but the store has blocks of {block_size}.")
    num_tokens, rule = plan.slots.shape[0], plan.retention
    if rule.kind is RetentionKind.WINDOW and rule.block_size != block_size:
        raise ValueError(f"{rule} is made for blocks of {rule.block_size} tokens, but the store has {block_size}.")
    sees = [rule.window, rule.sinks, rule.block_size]
    shape = [num_rows, num_tokens, table_width, block_size, *sees, group, num_store_heads, num_blocks, threads]
    plan.prepared = work = _ext.WorkList(
        shape,
        address(plan.query_start, torch.int32, (num_rows + 1,), "query_start"),
        address(plan.first_position, torch.int32, (num_rows,), "first_position"),
        address(plan.block_table, torch.int32, (num_rows, table_width), "the block table"),
    )
    return work
