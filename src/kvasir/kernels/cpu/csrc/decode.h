// One token's query heads against one KV head, straight from the store: nothing is converted twice because nothing is
// used twice.  All heads of the group share each loaded tile.
#pragma once

#include "tiles.h"

namespace kvasir::KVASIR_ISA {

constexpr int MAX_DIRECT_ROWS = 8;

#if defined(__AVX512F__)
constexpr int ACCUMULATORS = 24;  // in units of sixteen lanes
#elif defined(__AVX__) || defined(__aarch64__)
constexpr int ACCUMULATORS = 6;
#else
constexpr int ACCUMULATORS = 3;
#endif

// scores[r][i] of N sub-blocks from ``sub`` on; one fused chain over d for every (query, token).
template <class T, int R, int N>
INLINE void direct_scores(const HeadCache& cache, const float* q, int64_t sub, float* scores) {
  const int64_t dim = cache.a.head_dim, stride = cache.a.block_size;
  const T* k[N];
  for (int n = 0; n < N; ++n) k[n] = cache.k<T>(sub + n);
  F16 sum[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sum[r][n] = zeros();
  }
  for (int64_t d = 0; d < dim; ++d) {
    F16 column[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) column[n] = load(k[n] + d * stride, Whole{});
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F16 query = splat(q[r * dim + d]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[r][n] = fma(query, column[n], sum[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(scores + r * SEGMENT + n * LANES, sum[r][n], Whole{});
  }
}

// o[r][channel .. channel + 16 N) = sum over tokens [low, high) of weight * V, in token order.
template <class T, int R, int N, class Part>
INLINE void direct_values(const HeadCache& cache, const float* weights, int64_t low, int64_t high, int64_t channel,
                          Part part, float* o, int64_t o_stride) {
  const int64_t dim = cache.a.head_dim, segment_start = low / SEGMENT * SEGMENT;
  F16 sum[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sum[r][n] = zeros();
  }
  for (int64_t sub = low / LANES; sub * LANES < high; ++sub) {
    const int64_t first = larger(low, sub * LANES), last = smaller(high, sub * LANES + LANES);
    const T* v = cache.v<T>(sub) + (first - sub * LANES) * dim + channel;
    const float* weight = weights + (first - segment_start);
    for (int64_t t = 0; t < last - first; ++t) {
      F16 row[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) row[n] = load(v + t * dim + n * LANES, part);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F16 w = splat(weight[r * SEGMENT + t]);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) sum[r][n] = fma(w, row[n], sum[r][n]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(o + r * o_stride + channel + n * LANES, sum[r][n], Whole{});
  }
}

// Scores of R queries at one position over [low, high) of one segment, as weights; largest and sum per query.
template <class T, int R>
void direct_weights(const HeadCache& cache, const float* q, int64_t low, int64_t high, float* weights, float* largest,
                    float* sum) {
  const int64_t first = low / LANES, last = (high + LANES - 1) / LANES, segment = low / SEGMENT * (SEGMENT / LANES);
  float* scores = weights + (first - segment) * LANES;
  int64_t sub = first;
  for (; sub + 2 <= last; sub += 2) direct_scores<T, R, 2>(cache, q, sub, scores + (sub - first) * LANES);
  if (sub < last) direct_scores<T, R, 1>(cache, q, sub, scores + (sub - first) * LANES);
  for (int r = 0; r < R; ++r) {
    float* row = scores + r * SEGMENT;
    store(row, masked(load(row, Whole{}), first, low, high), Whole{});
    float* tail = row + (last - 1 - first) * LANES;
    store(tail, masked(load(tail, Whole{}), last - 1, low, high), Whole{});
    softmax_row(row, last - first, largest + r, sum + r);
  }
}

template <class T, int R>
void direct_outputs(const HeadCache& cache, const float* weights, int64_t low, int64_t high, float* o,
                    int64_t o_stride) {
  constexpr int N = ACCUMULATORS / R > 4 ? 4 : ACCUMULATORS / R > 0 ? ACCUMULATORS / R : 1;
  const int64_t dim = cache.a.head_dim;
  int64_t channel = 0;
  for (; channel + N * LANES <= dim; channel += N * LANES) {
    direct_values<T, R, N>(cache, weights, low, high, channel, Whole{}, o, o_stride);
  }
  for (; channel + LANES <= dim; channel += LANES) {
    direct_values<T, R, 1>(cache, weights, low, high, channel, Whole{}, o, o_stride);
  }
  if (channel < dim) {
    direct_values<T, R, 1>(cache, weights, low, high, channel, First{int(dim - channel)}, o, o_stride);
  }
}

using DirectWeights = void (*)(const HeadCache&, const float*, int64_t, int64_t, float*, float*, float*);
using DirectOutputs = void (*)(const HeadCache&, const float*, int64_t, int64_t, float*, int64_t);

template <class T>
INLINE DirectWeights direct_weights_of(int64_t rows) {
  static constexpr DirectWeights table[MAX_DIRECT_ROWS] = {
      direct_weights<T, 1>, direct_weights<T, 2>, direct_weights<T, 3>, direct_weights<T, 4>,
      direct_weights<T, 5>, direct_weights<T, 6>, direct_weights<T, 7>, direct_weights<T, 8>};
  return table[rows - 1];
}
template <class T>
INLINE DirectOutputs direct_outputs_of(int64_t rows) {
  static constexpr DirectOutputs table[MAX_DIRECT_ROWS] = {
      direct_outputs<T, 1>, direct_outputs<T, 2>, direct_outputs<T, 3>, direct_outputs<T, 4>,
      direct_outputs<T, 5>, direct_outputs<T, 6>, direct_outputs<T, 7>, direct_outputs<T, 8>};
  return table[rows - 1];
}

}  // namespace kvasir::KVASIR_ISA
