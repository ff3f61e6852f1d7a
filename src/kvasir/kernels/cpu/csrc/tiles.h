// Where the sixteen-token sub-blocks of a sequence lie in the paged store.
#pragma once

#include "exp.h"
#include "memory.h"

namespace kvasir::KVASIR_ISA {

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// The cache of one sequence and one KV head.  A sub-block is the tokens [16 * sub, 16 * sub + 16) of the sequence; it
// lies within one block, whose size is a multiple of sixteen.
struct HeadCache {
  const AttendArgs& a;
  const int32_t* table;
  int64_t index;  // of the head in the store

  // Which tile (block and head) holds the sub-block, counted over the whole store tensor.
  INLINE int64_t tile(int64_t sub) const {
    return int64_t(table[sub * LANES / a.block_size]) * a.num_store_heads + index;
  }
  // The sub-block's first token inside its tile.
  INLINE int64_t offset(int64_t sub) const { return sub * LANES % a.block_size; }
};

// -inf in the lanes whose token is outside [low, high).
INLINE F16 masked(F16 scores, int64_t sub, int64_t low, int64_t high) {
  const I16 lanes = lane_numbers();
  const I16 is_seen = (lanes >= splat(int32_t(low - sub * LANES))) & (lanes < splat(int32_t(high - sub * LANES)));
  return select(is_seen, scores, splat(-__builtin_inff()));
}

INLINE float largest_score(const float* scores, int64_t num_subs) {
  F16 top = splat(-__builtin_inff()), other_top = top;  // two chains: one would wait for itself
  int64_t n = 0;
  for (; n + 2 <= num_subs; n += 2) {
    top = max(top, load(scores + n * LANES, Whole{}));
    other_top = max(other_top, load(scores + n * LANES + LANES, Whole{}));
  }
  if (n < num_subs) top = max(top, load(scores + n * LANES, Whole{}));
  return max_lanes(max(top, other_top));
}

// Scores of one query over a run of sub-blocks, turned into weights in place.  Sets the largest score and the sum of
// weights.  Lanes stay apart until the end, so that sub-blocks without a visible token change nothing.  ``factor`` makes
// scores to base 2 of what is there; with 1 the multiplication changes no bit.
INLINE void softmax_row(float* scores, float factor, int64_t num_subs, float* largest, float* sum) {
  *largest = largest_score(scores, num_subs) * factor;
  const F16 rise = splat(factor), fall = splat(-*largest);
  F16 total = zeros();
  for (int64_t i = 0; i < num_subs; ++i) {
    F16 weight = exp2_nonpositive(fma(load(scores + i * LANES, Whole{}), rise, fall));
    store(scores + i * LANES, weight, Whole{});
    total = total + weight;
  }
  *sum = sum_lanes(total);
}

}  // namespace kvasir::KVASIR_ISA
