"""What a step costs, from the config alone: weight bytes, FLOPs, traffic.  No torch: planner and benches ask here."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from kvasir.kv.layout import KVLayout
from kvasir.kv.retention import Retention, RetentionKind
from kvasir.models.config import ModelConfig
from kvasir.models.parameters import layer_shapes, parameter_shapes
from kvasir.models.weight_dtype import WeightDtype

_FLOAT_BYTES = 4
_SCALE_BYTES = 4
_MATRIX_BYTES = {WeightDtype.INT8: 1, WeightDtype.FP32: 4, WeightDtype.BF16: 2}
_EMBEDDING_BYTES = {WeightDtype.INT8: 2, WeightDtype.FP32: 4, WeightDtype.BF16: 2}


@dataclass(frozen=True, slots=True)
class RowCost:
    """One row of a step: ``num_new`` tokens computed behind ``num_computed`` cached ones."""

    num_new: int
    num_computed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """A multiply-add counts as 2 FLOPs.  Norms, RoPE and activations (below 1 % of a step) are left out."""

    config: ModelConfig
    weight_dtype: WeightDtype

    @property
    def num_parameters(self) -> int:
        return sum(prod(shape) for shape in parameter_shapes(self.config).values())

    @property
    def weight_bytes(self) -> int:
        """Exactly ``ModelWeights.num_bytes`` of the loaded model."""
        config = self.config
        embedding = config.vocab_size * config.hidden_size * _EMBEDDING_BYTES[self.weight_dtype]
        is_shared = config.tie_word_embeddings and self.weight_dtype is not WeightDtype.INT8
        head = 0 if is_shared else self._head_bytes
        return embedding + config.num_layers * self._layer_bytes + config.hidden_size * _FLOAT_BYTES + head

    @property
    def linear_flops_per_token(self) -> int:
        """All products of all layers, without the LM head."""
        matrices = (shape for shape in layer_shapes(self.config).values() if len(shape) == 2)
        return self.config.num_layers * sum(2 * prod(shape) for shape in matrices)

    @property
    def head_flops_per_row(self) -> int:
        return 2 * self.config.vocab_size * self.config.hidden_size

    def attention_flops(self, layout: KVLayout, row: RowCost) -> int:
        """q.K and P.V of one row over all layers: 4 D FLOPs for each pair of a query head and a key it sees."""
        heads_per_kv_head = self.config.num_heads // self.config.num_kv_heads
        return sum(
            4 * spec.head_dim * heads_per_kv_head * spec.num_pairs * num_visible_pairs(spec.retention, row)
            for spec in layout.groups
        )

    def step_flops(self, layout: KVLayout, rows: tuple[RowCost, ...], num_logits: int) -> int:
        num_tokens = sum(row.num_new for row in rows)
        attention = sum(self.attention_flops(layout, row) for row in rows)
        return num_tokens * self.linear_flops_per_token + num_logits * self.head_flops_per_row + attention

    def step_bytes(self, layout: KVLayout, rows: tuple[RowCost, ...], num_logits: int) -> int:
        """Memory traffic if everything is read once: weights, the rows' visible KV, the new KV, embeddings, logits."""
        num_tokens = sum(row.num_new for row in rows)
        embedded = num_tokens * self.config.hidden_size * _EMBEDDING_BYTES[self.weight_dtype]
        head = (self._head_bytes if num_logits else 0) + num_logits * self.config.vocab_size * _FLOAT_BYTES
        kv = sum(kv_bytes(layout, row) for row in rows)
        return self.config.num_layers * self._layer_bytes + embedded + head + kv

    @property
    def _layer_bytes(self) -> int:
        return sum(
            self._matrix_bytes(shape) if len(shape) == 2 else shape[0] * _FLOAT_BYTES
            for shape in layer_shapes(self.config).values()
        )

    @property
    def _head_bytes(self) -> int:
        return self._matrix_bytes((self.config.vocab_size, self.config.hidden_size))

    def _matrix_bytes(self, shape: tuple[int, ...]) -> int:
        scales = shape[0] * _SCALE_BYTES if self.weight_dtype is WeightDtype.INT8 else 0
        return prod(shape) * _MATRIX_BYTES[self.weight_dtype] + scales


def kv_bytes(layout: KVLayout, row: RowCost) -> int:
    """Bytes of KV one row reads (each visible token once) and writes."""
    end = row.num_computed + row.num_new
    num_bytes = 0.0
    for spec in layout.groups:
        num_bytes += (spec.retention.num_seen(row.num_computed, end) + row.num_new) * spec.bytes_per_token
    return round(num_bytes)


def num_visible_pairs(retention: Retention, row: RowCost) -> int:
    """How many (query, key) pairs the row's queries at [num_computed, num_computed + num_new) see."""
    return _PAIRS[retention.kind](retention, row)


def _full_pairs(retention: Retention, row: RowCost) -> int:
    return row.num_new * row.num_computed + row.num_new * (row.num_new + 1) // 2


def _sliding_pairs(retention: Retention, row: RowCost) -> int:
    """Queries before position ``window`` see all before them, the others ``window`` keys each."""
    end = row.num_computed + row.num_new
    growing = max(0, min(end, retention.window) - row.num_computed)
    return _full_pairs(retention, RowCost(growing, row.num_computed)) + (row.num_new - growing) * retention.window


def _window_pairs(retention: Retention, row: RowCost) -> int:
    """Block by block: all queries of a block have one oldest key, or are sinks themselves."""
    size, end = retention.block_size, row.num_computed + row.num_new
    num_pairs, start = 0, row.num_computed
    while start < end:
        stop = min(end, (start // size + 1) * size)
        num_hidden = 0 if start < retention.sinks else retention.first_visible(start) - retention.sinks
        num_pairs += _full_pairs(retention, RowCost(stop - start, start)) - num_hidden * (stop - start)
        start = stop
    return num_pairs


_PAIRS: dict[RetentionKind, Callable[[Retention, RowCost], int]] = {
    RetentionKind.FULL: _full_pairs,
    RetentionKind.SLIDING: _sliding_pairs,
    RetentionKind.WINDOW: _window_pairs,
}
