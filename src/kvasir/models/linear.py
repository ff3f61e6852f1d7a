"""Matrix products of a layer: integer or floating weights in, a ``Product`` for the next kernel's epilogue out."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from kvasir.kernels.interface import Best, Int8Weights, Kernels, Product, Rows, RowStyle
from kvasir.kernels.rotation import rotation_size
from kvasir.models.weight_dtype import WeightDtype

MAX_ROTATION = 512
"""Largest block of the Hadamard rotation; larger ones spread outliers no further and cost more a token."""


class Scratch:
    """The memory products are written to: one buffer that grows to the largest product and is used for each in turn.

    A product stays valid until the next ``take``; large outputs are thus never allocated (and page-faulted) anew.
    """

    def __init__(self) -> None:
        self._words = torch.empty(0, dtype=torch.int32)

    def take(self, num_rows: int, num_columns: int, dtype: torch.dtype) -> Tensor:
        """Uninitialised [num_rows, num_columns] of ``dtype`` (int32 or fp32)."""
        size = num_rows * num_columns
        if size > self._words.shape[0]:
            self._words = torch.empty(size, dtype=torch.int32)
        return self._words[:size].view(dtype).view(num_rows, num_columns)

    @property
    def num_bytes(self) -> int:
        return self._words.nbytes


class Linear(Protocol):
    """``style`` is how the input rows must come.  ``num_bytes`` are the bytes of its own tensors."""

    style: RowStyle
    in_features: int
    out_features: int
    num_bytes: int

    def __call__(self, rows: Rows, scratch: Scratch, kernels: Kernels) -> Product:
        """``rows`` [T, in_features] in ``style`` -> product [T, out_features] in ``scratch``; T may be 0."""
        ...

    def best(self, rows: Rows, scratch: Scratch, kernels: Kernels) -> Best:
        """The largest value of each row of the product, epilogue included, and where it is."""
        ...


class Int8Linear:
    """int8 codes with one scale per output channel; exact int32 accumulation, so a row's result is the same in any
    batch.  ``bias`` is fp32 [N] or None."""

    def __init__(self, weights: Int8Weights, scale: Tensor, bias: Tensor | None, rotation: int) -> None:
        self.style = RowStyle(is_quantised=True, rotation=rotation)
        self.out_features, self.in_features = weights.num_columns, weights.width
        # What packing rounds up to whole sixteens (nothing in most models) is not counted: it depends on the machine.
        self.num_bytes = self.out_features * self.in_features + scale.nbytes + _num_bytes(bias)
        self._weights = weights
        self._scale = scale
        self._bias = bias

    def __call__(self, rows: Rows, scratch: Scratch, kernels: Kernels) -> Product:
        data = scratch.take(rows.data.shape[0], self.out_features, torch.int32)
        kernels.multiply(rows, self._weights, data)
        return Product(data, rows.scale, self._scale, self._bias)

    def best(self, rows: Rows, scratch: Scratch, kernels: Kernels) -> Best:
        return kernels.best_columns(rows, self._weights, self._scale, self._bias)


class FloatLinear:
    """fp32 or bf16 weights [N, K].  With bf16 the rows are rounded to bf16 and so is the product, once, after its sum
    was accumulated in fp32; the product's tensor is fp32 either way."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.style = RowStyle(is_quantised=False)
        self.out_features, self.in_features = weight.shape
        self.num_bytes = weight.nbytes + _num_bytes(bias)
        self._weight = weight.t()
        self._bias = bias

    def __call__(self, rows: Rows, scratch: Scratch, kernels: Kernels) -> Product:
        data = scratch.take(rows.data.shape[0], self.out_features, torch.float32)
        if self._weight.dtype is torch.float32:
            torch.mm(rows.data, self._weight, out=data)
        else:
            data.copy_(torch.mm(rows.data.to(self._weight.dtype), self._weight))
        return Product(data, bias=self._bias)

    def best(self, rows: Rows, scratch: Scratch, kernels: Kernels) -> Best:
        product = self(rows, scratch, kernels)
        values = product.data if product.bias is None else product.data + product.bias
        return Best(values.argmax(dim=1), values.amax(dim=1))


LinearMaker = Callable[[Tensor, Tensor | None], Linear]
"""(weight [N, K] as stored, bias [N] or None) -> a linear layer that keeps no view of them."""


def make_linear_maker(weight_dtype: WeightDtype, kernels: Kernels, max_rotation: int = MAX_ROTATION) -> LinearMaker:
    """How weights of ``weight_dtype`` are prepared.

    INT8: each output channel is rotated and quantised as a row by the very kernel that later does it to activations;
    as the rotation is orthonormal and on both sides, products are unchanged.  ``max_rotation`` 0 leaves both alone.
    """
    if weight_dtype is WeightDtype.INT8:
        return lambda weight, bias: _make_int8(weight, bias, kernels, max_rotation)
    dtype = _FLOAT_DTYPES[weight_dtype]
    return lambda weight, bias: FloatLinear(owned(weight, dtype), owned_or_none(bias))


def owned(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A contiguous copy in ``dtype``, never a view."""
    return tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)


def owned_or_none(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else owned(tensor, torch.float32)


_FLOAT_DTYPES = {WeightDtype.FP32: torch.float32, WeightDtype.BF16: torch.bfloat16}


def _make_int8(weight: Tensor, bias: Tensor | None, kernels: Kernels, max_rotation: int) -> Int8Linear:
    rotation = rotation_size(weight.shape[1], max_rotation) if max_rotation else 0
    rows = kernels.rotate_rows(weight.float().contiguous(), RowStyle(is_quantised=True, rotation=rotation))
    assert rows.scale is not None
    return Int8Linear(kernels.pack(rows.data), rows.scale, owned_or_none(bias), rotation)


def _num_bytes(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.nbytes
