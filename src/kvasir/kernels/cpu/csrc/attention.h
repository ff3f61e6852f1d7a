// Paged attention: units of work, 512-token segments, and their merge in order.
//
// A query's scores over one segment become weights relative to that segment's largest score; segments are merged
// oldest first.  The segment boundaries are absolute positions, so a query's arithmetic depends on its position alone.
#pragma once

#include "prefill.h"

namespace kvasir::KVASIR_ISA {

constexpr float LOG2E = 1.44269504f;

// Attention of some rows over some tokens: weights are 2^(score - largest), o is not yet divided by their sum.
// A row with sum 0 has seen nothing.
struct Partial {
  float* largest;  // [rows]
  float* sum;      // [rows]
  float* o;        // [rows][stride]

  static INLINE int64_t floats(int64_t rows, int64_t stride) { return rows * (stride + 2); }
  static INLINE Partial at(float* memory, int64_t rows, int64_t stride) {
    return {memory + rows * stride, memory + rows * stride + rows, memory};
  }
};

inline void merge(const Partial& into, const Partial& newer, int64_t rows, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    float *o = into.o + r * stride, *added = newer.o + r * stride;
    if (newer.sum[r] == 0.0f) continue;
    if (into.sum[r] == 0.0f) {
      into.largest[r] = newer.largest[r];
      into.sum[r] = newer.sum[r];
      memcpy(o, added, stride * sizeof(float));
      continue;
    }
    const float top = newer.largest[r] > into.largest[r] ? newer.largest[r] : into.largest[r];
    const F16 old_factor = exp2_nonpositive(splat(into.largest[r] - top));
    const F16 new_factor = exp2_nonpositive(splat(newer.largest[r] - top));
    into.largest[r] = top;
    into.sum[r] = fma(splat(newer.sum[r]), new_factor, splat(into.sum[r]) * old_factor).part[0][0];
    for (int64_t i = 0; i < stride; i += LANES) {
      store(o + i, fma(load(added + i, Whole{}), new_factor, load(o + i, Whole{}) * old_factor), Whole{});
    }
  }
}

struct BlockWork {
  const AttendArgs& a;
  const QueryBlock& block;
  HeadCache cache;
  QueryRows rows;
  int64_t stride;     // of a row of o
  bool is_direct;     // one token: straight from the store
  Scratch& scratch;
  float* q;           // scaled, as the path wants it

  BlockWork(const AttendArgs& args, const QueryBlock& query_block, int64_t index, Scratch& memory)
      : a(args),
        block(query_block),
        cache{args, args.table + query_block.row * args.table_width, index},
        rows{query_block.first_position, query_block.num_tokens * args.group, args.group, args.window},
        stride((args.head_dim + LANES - 1) / LANES * LANES),
        is_direct(query_block.num_tokens == 1 && args.group <= MAX_DIRECT_ROWS),
        scratch(memory),
        q(memory.floats(1, (rows.count + TILE_ROWS) * args.head_dim)) {
    const float scale = a.scale * LOG2E;
    for (int64_t r = 0; r < rows.count; ++r) {
      const float* from = query(a.q, r);
      if (is_direct) {
        for (int64_t d = 0; d < a.head_dim; ++d) q[r * a.head_dim + d] = from[d] * scale;
      } else {
        float* tile = q + r / TILE_ROWS * TILE_ROWS * a.head_dim + r % TILE_ROWS;
        for (int64_t d = 0; d < a.head_dim; ++d) tile[d * TILE_ROWS] = from[d] * scale;
      }
    }
  }

  template <class T>
  INLINE T* query(T* tensor, int64_t row) const {
    const int64_t token = block.first_token + row / a.group;
    const int64_t head = a.heads[cache.index] * a.group + row % a.group;
    return tensor + (token * a.num_heads + head) * a.head_dim;
  }

  template <class K, class V>
  void attend_segment(int64_t segment, const Partial& out) {
    const int64_t start = segment * SEGMENT;
    const SegmentRange range{start, larger(start, rows.low(0)), smaller(start + SEGMENT, rows.high(rows.count - 1))};
    float* weights = scratch.floats(2, rows.count * SCORE_STRIDE);
    if (is_direct) {
      direct_weights_of<K>(rows.count)(cache, q, range.low, range.high, weights, out.largest, out.sum);
      direct_outputs_of<V>(rows.count)(cache, weights, range.low, range.high, out.o, stride);
      return;
    }
    float* chunk = scratch.floats(3, CHUNK_SUBS * LANES * stride);
    block_scores<K>(cache, rows, range, q, chunk, weights);
    block_softmax(rows, range, weights, out.largest, out.sum);
    block_values<V>(cache, rows, range, weights, chunk, out.o);
  }

  template <class K>
  INLINE void attend_with_k(int64_t segment, const Partial& out) {
    switch (a.v_dtype) {
      case Dtype::FP32: return attend_segment<K, float>(segment, out);
      case Dtype::BF16: return attend_segment<K, bf16>(segment, out);
      case Dtype::FP16: return attend_segment<K, fp16>(segment, out);
    }
  }

  void attend(int64_t segment, const Partial& out) {
    switch (a.k_dtype) {
      case Dtype::FP32: return attend_with_k<float>(segment, out);
      case Dtype::BF16: return attend_with_k<bf16>(segment, out);
      case Dtype::FP16: return attend_with_k<fp16>(segment, out);
    }
  }

  void write(const Partial& result) const {
    for (int64_t r = 0; r < rows.count; ++r) {
      const F16 sum = splat(result.sum[r]);
      float* out = query(a.out, r);
      for_lanes(a.head_dim, [&](int64_t i, auto part) {
        store(out + i, load(result.o + r * stride + i, Whole{}) / sum, part);
      });
    }
  }

  void attend_all() {
    const int64_t size = Partial::floats(rows.count, stride);
    const Partial result = Partial::at(scratch.floats(4, size), rows.count, stride);
    const Partial newer = Partial::at(scratch.floats(5, size), rows.count, stride);
    attend(block.first_segment, result);
    for (int64_t n = 1; n < block.num_segments; ++n) {
      attend(block.first_segment + n, newer);
      merge(result, newer, rows.count, stride);
    }
    write(result);
  }

  // One segment; whoever finishes a block's last one merges them all.
  void attend_part(int64_t segment, int32_t* pending) {
    const int64_t size = Partial::floats(rows.count, stride);
    float* memory = a.partials + (block.partials * a.num_store_heads + cache.index * block.num_segments * rows.count) *
                                     (stride + 2);
    attend(segment, Partial::at(memory + (segment - block.first_segment) * size, rows.count, stride));
    if (__atomic_sub_fetch(pending, 1, __ATOMIC_ACQ_REL) != 0) return;
    const Partial result = Partial::at(memory, rows.count, stride);
    for (int64_t n = 1; n < block.num_segments; ++n) {
      merge(result, Partial::at(memory + n * size, rows.count, stride), rows.count, stride);
    }
    write(result);
  }
};

inline void attend(const AttendArgs& a, int64_t begin, int64_t end, Scratch& scratch) {
  for (int64_t item = begin; item < end; ++item) {
    const Unit& unit = a.units[item / a.num_store_heads];
    const int64_t index = item % a.num_store_heads;
    BlockWork work(a, a.blocks[unit.block], index, scratch);
    if (unit.segment < 0) {
      work.attend_all();
    } else {
      work.attend_part(unit.segment, a.pending + unit.block * a.num_store_heads + index);
    }
  }
}

}  // namespace kvasir::KVASIR_ISA
