// Sparse reading: which blocks of its cache a decoding query reads, by an upper bound of the scores in each.
//
// A query's score with any key of a block is at most sum_d max(q_d * low_d, q_d * high_d), where low and high bound the
// block's keys channel by channel (Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference",
// 2024).  The sum is one chain of fused multiply-adds in each of sixteen lanes and one tree: what is chosen for a query
// depends on that query and its own blocks alone.
#pragma once

#include <cstring>

#include "memory.h"

namespace kvasir::KVASIR_ISA {

// The largest bound over the head's queries; a bound that is no number counts as infinite, so that it stays visible.
INLINE float block_bound(const float* q, int64_t group, int64_t dim, const bf16* bounds) {
  const int64_t stride = (dim + LANES - 1) / LANES * LANES;
  float largest = -__builtin_inff();
  for (int64_t g = 0; g < group; ++g) {
    const float *above = q + 2 * g * stride, *below = above + stride;  // the query's parts above and below zero
    F16 sum = zeros();
    for_lanes(dim, [&](int64_t d, auto part) {
      sum = fma(load(above + d, Whole{}), load(bounds + dim + d, part), sum);
      sum = fma(load(below + d, Whole{}), load(bounds + d, part), sum);
    });
    const float bound = sum_lanes(sum);
    if (!(bound <= largest)) largest = bound == bound ? bound : __builtin_inff();
  }
  return largest;
}

// Moves the ``wanted`` best of ``items`` to the front, in any order; ``is_better`` is a total order.  Our own, because an
// instance of a standard template made here could be merged with another instruction set's (simd.h).
template <class Better>
INLINE void move_best_first(int32_t* items, int64_t count, int64_t wanted, Better is_better) {
  const auto swap = [&](int64_t i, int64_t j) {
    const int32_t item = items[i];
    items[i] = items[j];
    items[j] = item;
  };
  int64_t low = 0, high = count;  // [0, low) are among the best, [high, count) are not
  while (low < wanted && wanted < high) {
    swap(low + (high - low) / 2, high - 1);
    const int32_t pivot = items[high - 1];
    int64_t better = low;
    for (int64_t i = low; i < high - 1; ++i) {
      if (is_better(items[i], pivot)) swap(better++, i);
    }
    swap(better, high - 1);
    if (wanted <= better) high = better;
    else low = better + 1;
  }
}

// An item is a (row, head): writes its ``limit`` blocks, oldest first.
inline void select_blocks(const SelectArgs& a, int64_t begin, int64_t end, Scratch& scratch) {
  const int64_t stride = (a.head_dim + LANES - 1) / LANES * LANES;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / a.num_heads, head = item % a.num_heads, count = a.num_blocks[row];
    float* q = scratch.floats(0, 2 * a.group * stride);
    memset(q, 0, size_t(2 * a.group * stride) * sizeof(float));
    for (int64_t g = 0; g < a.group; ++g) {
      const float* from = a.q + (item * a.group + g) * a.head_dim;
      for (int64_t d = 0; d < a.head_dim; ++d) q[(2 * g + (from[d] < 0.0f)) * stride + d] = from[d];
    }
    const int32_t* table = a.table + row * a.table_width;
    float* bounds = scratch.floats(1, count);
    int32_t* order = (int32_t*)scratch.floats(2, count);
    for (int64_t b = 1; b < count - 1; ++b) {
      const int64_t tile = int64_t(table[b]) * a.num_heads + head;
      bounds[b] = block_bound(q, a.group, a.head_dim, a.bounds + tile * 2 * a.head_dim);
      order[b - 1] = int32_t(b);
    }
    const auto is_better = [&](int32_t x, int32_t y) { return bounds[x] > bounds[y] || (bounds[x] == bounds[y] && x < y); };
    const int64_t wanted = a.limit - 2;
    move_best_first(order, count - 2, wanted, is_better);
    int32_t worst = wanted > 0 ? order[0] : 0;
    for (int64_t i = 1; i < wanted; ++i) {
      if (is_better(worst, order[i])) worst = order[i];
    }
    int32_t* out = a.out + item * a.limit;
    const auto tile_of = [&](int64_t b) { return int32_t(table[b] * a.num_heads + head); };
    out[0] = tile_of(0);
    for (int64_t b = 1, i = 0; i < wanted; ++b) {
      if (!is_better(worst, int32_t(b))) out[++i] = tile_of(b);
    }
    out[a.limit - 1] = tile_of(count - 1);
  }
}

}  // namespace kvasir::KVASIR_ISA
