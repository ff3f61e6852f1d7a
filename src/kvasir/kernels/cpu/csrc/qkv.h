// The q/k/v product's epilogue: scales, bias, head norms, RoPE, and the write into the paged cache.
#pragma once

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

// ``codes``: room for a row of bytes.
inline void encode_k(const KVTarget& target, const SlotOf& slot, int64_t dim, const float* head, int8_t* codes) {
  void* k = target.k[0];
  switch (target.k_dtype) {
    case Dtype::FP32: return write_k(slot.dense<float>(k, dim), slot.offset, slot.size, dim, head);
    case Dtype::BF16: return write_k(slot.dense<bf16>(k, dim), slot.offset, slot.size, dim, head);
    case Dtype::FP16: return write_k(slot.dense<fp16>(k, dim), slot.offset, slot.size, dim, head);
    case Dtype::INT8: return write_int8_k(k, slot.tile, slot.offset, slot.size, dim, codes, head);
  }
}

inline void encode_v(const KVTarget& target, const SlotOf& slot, int64_t dim, const float* head, int8_t* codes) {
  void* v = target.v[0];
  switch (target.v_dtype) {
    case Dtype::FP32: return write_v(slot.dense<float>(v, dim), slot.offset, dim, head);
    case Dtype::BF16: return write_v(slot.dense<bf16>(v, dim), slot.offset, dim, head);
    case Dtype::FP16: return write_v(slot.dense<fp16>(v, dim), slot.offset, dim, head);
    case Dtype::INT8: return write_int8_v(v, slot.tile, slot.offset, slot.size, dim, codes, head);
  }
}

inline void qkv_write(const QkvArgs& a, int64_t begin, int64_t end, Scratch& scratch) {
  const int64_t dim = a.head_dim;
  float* head = row_buffer(scratch, 2 * padded(dim));
  for (int64_t i = dim; i < padded(dim); ++i) head[i] = 0.0f;  // what quantise asks for
  int8_t* codes = (int8_t*)(head + padded(dim));
  for (int64_t t = begin; t < end; ++t) {
    const float *cos = a.cos + t * (dim / 2), *sin = a.sin + t * (dim / 2);
    with_row(a.product, t, [&](auto product) {
      for (int64_t h = 0; h < a.num_heads; ++h) {
        float* q = a.q + (t * a.num_heads + h) * dim;
        read_head(product, h * dim, dim, q);
        if (a.q_norm) norm_head(q, a.q_norm, a.eps, dim);
        rope_head(q, cos, sin, dim);
      }
      for (int64_t n = 0; n < a.num_targets; ++n) {
        const KVTarget& target = a.targets[n];
        for (int64_t index = 0; index < target.num_heads; ++index) {
          const int64_t kv_head = target.heads[index];
          const SlotOf slot(target, target.slots[t], index);
          read_head(product, (a.num_heads + kv_head) * dim, dim, head);
          if (a.k_norm) norm_head(head, a.k_norm, a.eps, dim);
          rope_head(head, cos, sin, dim);
          encode_k(target, slot, dim, head, codes);
          read_head(product, (a.num_heads + a.num_kv_heads + kv_head) * dim, dim, head);
          encode_v(target, slot, dim, head, codes);
        }
      }
    });
  }
}

}  // namespace kvasir::KVASIR_ISA
