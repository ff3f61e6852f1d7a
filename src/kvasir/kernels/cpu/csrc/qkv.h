// The q/k/v product's epilogue: scales, bias, head norms, RoPE, and the write into the paged cache.
#pragma once

#include "int4_write.h"
#include "int8_tiles.h"
#include "rows.h"

namespace kvasir::KVASIR_ISA {

// Reads ``head_dim`` columns from ``column`` of a product row into ``head``.
template <class Row>
INLINE void read_head(const Row& product, int64_t column, int64_t head_dim, float* head) {
  for_lanes(head_dim, [&](int64_t i, auto part) { store(head + i, product.at(column + i, part), part); });
}

inline void norm_head(float* head, const float* weight, float eps, int64_t head_dim) {
  SquareSum squares;
  for_lanes(head_dim, [&](int64_t i, auto part) { squares.add(i, load(head + i, part)); });
  norm_row(head, squares.total(), weight, eps, head_dim, head);
}

// Half-split pairs (i, i + D/2).
inline void rope_head(float* head, const float* cos, const float* sin, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  for_lanes(half, [&](int64_t i, auto part) {
    F16 low = load(head + i, part), high = load(head + half + i, part);
    F16 c = load(cos + i, part), s = load(sin + i, part);
    store(head + i, fma(low, c, zeros() - high * s), part);
    store(head + half + i, fma(high, c, low * s), part);
  });
}

// K tile [D, B]: one token is a column.  Plain element stores: neighbours in the same line may be other threads'.
template <class T>
inline void write_k(T* tile, int64_t offset, int64_t block_size, int64_t head_dim, const float* head) {
  for_lanes(head_dim, [&](int64_t i, auto part) {
    T codes[LANES];
    store(codes, load(head + i, part), Whole{});
    int count = LANES;
    if constexpr (sizeof(part) != sizeof(Whole)) count = part.count;
    for (int j = 0; j < count; ++j) tile[(i + j) * block_size + offset] = codes[j];
  });
}

// V tile [B, D]: one token is a row.
template <class T>
inline void write_v(T* tile, int64_t offset, int64_t head_dim, const float* head) {
  for_lanes(head_dim, [&](int64_t i, auto part) { store(tile + offset * head_dim + i, load(head + i, part), part); });
}

// Where a token goes: tile (block and head, over the whole store tensor) and its offset inside.
struct SlotOf {
  int64_t tile, offset, size;

  INLINE SlotOf(const KVTarget& target, int64_t slot, int64_t index)
      : tile(slot / target.block_size * target.num_heads + index),
        offset(slot % target.block_size),
        size(target.block_size) {}
  template <class T>
  INLINE T* dense(void* tensor, int64_t head_dim) const {
    return (T*)tensor + tile * size * head_dim;
  }
};

// Up to sixteen tokens' rows of one head, and where they go.
struct RowBatch {
  const KVTarget& target;
  int64_t index;      // of the head in the store
  const int64_t* slots;
  int64_t count, dim;
  float* rows;        // [count][stride], zeros behind dim
  int64_t stride;
  int8_t* codes;      // room for a row of bytes
  float* lanes;       // room for LaneRows

  template <class Body>
  INLINE void each(Body body) const {
    for (int64_t i = 0; i < count; ++i) body(SlotOf(target, slots[i], index), rows + i * stride);
  }
  // In units of the scale and within what e4m3 holds; what is not finite becomes NaN.
  INLINE void scale_to_fp8(float scale) const {
    const F16 inverse = splat(1.0f / scale), most = splat(448.0f), least = splat(-448.0f);
    each([&](const SlotOf&, float* row) {
      for (int64_t i = 0; i < dim; i += LANES) {
        const F16 v = load(row + i, Whole{});
        const F16 scaled = v * inverse, cut = select(scaled > most, most, select(scaled < least, least, scaled));
        const I16 is_bad = (as_int(v) & splat(0x7fffffff)) >= splat(0x7f800000);
        store(row + i, select(is_bad, splat(__builtin_nanf("")), cut), Whole{});
      }
    });
  }
  INLINE const float* of_head(const float* constants, int64_t size) const {
    return constants ? constants + index * size : nullptr;
  }
};

inline void encode_k(const RowBatch& b) {
  void* k = b.target.k[0];
  const int64_t dim = b.dim;
  const Constants& c = b.target.constants;
  switch (b.target.k_dtype) {
    case Dtype::FP32:
      return b.each([&](const SlotOf& slot, float* row) { write_k(slot.dense<float>(k, dim), slot.offset, slot.size, dim, row); });
    case Dtype::BF16:
      return b.each([&](const SlotOf& slot, float* row) { write_k(slot.dense<bf16>(k, dim), slot.offset, slot.size, dim, row); });
    case Dtype::FP16:
      return b.each([&](const SlotOf& slot, float* row) { write_k(slot.dense<fp16>(k, dim), slot.offset, slot.size, dim, row); });
    case Dtype::FP8:
      b.scale_to_fp8(c.k_scale[b.index]);
      return b.each([&](const SlotOf& slot, float* row) { write_k(slot.dense<fp8>(k, dim), slot.offset, slot.size, dim, row); });
    case Dtype::INT8:
      return b.each([&](const SlotOf& slot, float* row) { write_int8_k(k, slot.tile, slot.offset, slot.size, dim, b.codes, row); });
    case Dtype::INT4: {
      const Int4Shape shape(dim, b.target.block_size);
      const HeadBasis basis{b.of_head(c.k_center, dim), b.of_head(c.k_sink, dim), b.of_head(c.k_feedback, dim * dim)};
      const Int4Rows coded(b.lanes, b.rows, b.stride, b.count, shape, basis);
      int64_t t = 0;
      return b.each([&](const SlotOf& slot, float*) { coded.write_k((uint8_t*)k + slot.tile * shape.tile_bytes(), shape, slot.offset, t++); });
    }
  }
}

inline void encode_v(const RowBatch& b) {
  void* v = b.target.v[0];
  const int64_t dim = b.dim;
  const Constants& c = b.target.constants;
  switch (b.target.v_dtype) {
    case Dtype::FP32:
      return b.each([&](const SlotOf& slot, float* row) { write_v(slot.dense<float>(v, dim), slot.offset, dim, row); });
    case Dtype::BF16:
      return b.each([&](const SlotOf& slot, float* row) { write_v(slot.dense<bf16>(v, dim), slot.offset, dim, row); });
    case Dtype::FP16:
      return b.each([&](const SlotOf& slot, float* row) { write_v(slot.dense<fp16>(v, dim), slot.offset, dim, row); });
    case Dtype::FP8:
      b.scale_to_fp8(c.v_scale[b.index]);
      return b.each([&](const SlotOf& slot, float* row) { write_v(slot.dense<fp8>(v, dim), slot.offset, dim, row); });
    case Dtype::INT8:
      return b.each([&](const SlotOf& slot, float* row) { write_int8_v(v, slot.tile, slot.offset, slot.size, dim, b.codes, row); });
    case Dtype::INT4: {
      const Int4Shape shape(dim, b.target.block_size);
      const Int4Rows coded(b.lanes, b.rows, b.stride, b.count, shape, {nullptr, b.of_head(c.v_sink, dim), nullptr});
      int64_t t = 0;
      return b.each([&](const SlotOf& slot, float*) { coded.write_v((uint8_t*)v + slot.tile * shape.tile_bytes(), shape, slot.offset, t++); });
    }
  }
}

inline void write_queries(const QkvArgs& a, int64_t t) {
  const int64_t dim = a.head_dim;
  with_row(a.product, t, [&](auto product) {
    for (int64_t h = 0; h < a.num_heads; ++h) {
      float* q = a.q + (t * a.num_heads + h) * dim;
      read_head(product, h * dim, dim, q);
      if (a.q_norm) norm_head(q, a.q_norm, a.eps, dim);
      rope_head(q, a.cos + t * (dim / 2), a.sin + t * (dim / 2), dim);
    }
  });
}

inline void qkv_write(const QkvArgs& a, int64_t begin, int64_t end, Scratch& scratch) {
  const int64_t dim = a.head_dim, stride = padded(dim);
  float* rows = scratch.floats(0, (LANES + 1) * stride);
  memset(rows, 0, LANES * stride * sizeof(float));
  float* lanes = scratch.floats(1, LaneRows::floats(dim));
  for (int64_t first = begin; first < end; first += LANES) {
    const int64_t count = end - first < LANES ? end - first : LANES;
    for (int64_t t = first; t < first + count; ++t) write_queries(a, t);
    const auto read_rows = [&](int64_t head, bool is_key) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t t = first + i;
        float* row = rows + i * stride;
        with_row(a.product, t, [&](auto product) { read_head(product, head * dim, dim, row); });
        if (!is_key) continue;
        if (a.k_norm) norm_head(row, a.k_norm, a.eps, dim);
        rope_head(row, a.cos + t * (dim / 2), a.sin + t * (dim / 2), dim);
      }
    };
    for (int64_t n = 0; n < a.num_targets; ++n) {
      const KVTarget& target = a.targets[n];
      for (int64_t index = 0; index < target.num_heads; ++index) {
        const int64_t kv_head = target.heads[index];
        const RowBatch batch{target, index, target.slots + first, count, dim, rows, stride, (int8_t*)(rows + LANES * stride), lanes};
        read_rows(a.num_heads + kv_head, true);
        encode_k(batch);
        read_rows(a.num_heads + a.num_kv_heads + kv_head, false);
        encode_v(batch);
      }
    }
  }
}

}  // namespace kvasir::KVASIR_ISA
