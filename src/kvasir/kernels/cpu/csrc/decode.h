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

// How many sub-blocks before its use a tile is asked for.  Tiles lie scattered over the store, a few kilobytes each,
// so the hardware's own prefetch gives up at the end of every one.
constexpr int64_t AHEAD = 4;

// A tile to fetch while another is used: head_dim steps of ``stride`` bytes.
struct Ahead {
  const char* tile;
  int64_t stride;
};

// K of the sub-block AHEAD of ``sub``, or the V tiles that follow when the segment's K ends before.
template <class T>
INLINE Ahead tile_ahead(const HeadCache& cache, int64_t sub, int64_t first, int64_t last) {
  const int64_t wanted = sub + AHEAD;
  if (wanted < last) return {(const char*)cache.k<T>(wanted), cache.a.block_size * int64_t(sizeof(T))};
  const int64_t next = smaller(first + (wanted - last), last - 1);
  if (cache.a.v_dtype == Dtype::FP32) return {(const char*)cache.v<float>(next), LANES * 4};
  return {(const char*)cache.v<bf16>(next), LANES * 2};
}

// scores[r][i] of N sub-blocks from ``sub`` on; one fused chain over d for every (query, token).
template <class T, int R, int N>
INLINE void direct_scores(const HeadCache& cache, const float* q, int64_t sub, const Ahead (&ahead)[2], float* scores) {
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
    for (int n = 0; n < N; ++n) {
      __builtin_prefetch(ahead[n].tile + d * ahead[n].stride);
      column[n] = load(k[n] + d * stride, Whole{});
    }
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
    for (int n = 0; n < N; ++n) store(scores + r * SCORE_STRIDE + n * LANES, sum[r][n], Whole{});
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
    const T* ahead = cache.v<T>(smaller(sub + AHEAD, (high - 1) / LANES)) + channel;
    const float* weight = weights + (first - segment_start);
    for (int64_t t = 0; t < last - first; ++t) {
      F16 row[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        if (n * LANES * sizeof(T) % 64 == 0) __builtin_prefetch(ahead + t * dim + n * LANES);
        row[n] = load(v + t * dim + n * LANES, part);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F16 w = splat(weight[r * SCORE_STRIDE + t]);
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
  for (; sub < last; sub += 2) {
    const Ahead ahead[2] = {tile_ahead<T>(cache, sub, first, last), tile_ahead<T>(cache, sub + 1, first, last)};
    float* out = scores + (sub - first) * LANES;
    if (sub + 2 <= last) {
      direct_scores<T, R, 2>(cache, q, sub, ahead, out);
    } else {
      direct_scores<T, R, 1>(cache, q, sub, ahead, out);
    }
  }
  for (int r = 0; r < R; ++r) {
    float* row = scores + r * SCORE_STRIDE;
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
