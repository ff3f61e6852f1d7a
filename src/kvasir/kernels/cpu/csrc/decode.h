// One token's query heads against one KV head, straight from the store: nothing is converted twice because nothing is
// used twice.  All heads of the group share each loaded tile.
#pragma once

#include "dense_tiles.h"

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

// Where V of a sub-block lies; the V format's.
using VAhead = Ahead (*)(const HeadCache& cache, int64_t sub);

// What to fetch while sub-block ``sub`` of [first, last) is scored: K of the one AHEAD, or the V tiles that follow when
// the segment's K ends before.
template <class K>
INLINE Ahead tile_ahead(const HeadCache& cache, int64_t sub, int64_t first, int64_t last, VAhead v_ahead) {
  const int64_t wanted = sub + AHEAD;
  if (wanted < last) return K(cache, wanted).ahead();
  return v_ahead(cache, smaller(first + (wanted - last), last - 1));
}

// scores[r][i] of N sub-blocks from ``sub`` on; one fused chain over d for every (query, token).
template <class K, int R, int N>
INLINE void direct_scores(const HeadCache& cache, const float* q, int64_t sub, const Ahead (&ahead)[2], float* scores) {
  const int64_t dim = cache.a.head_dim;
  const K k[2] = {K(cache, sub), K(cache, sub + N - 1)};
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
      __builtin_prefetch(ahead[n].at + d * ahead[n].stride);
      column[n] = k[n].column(d);
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
template <class V, int R, int N, class Part>
INLINE void direct_values(const HeadCache& cache, const float* weights, int64_t low, int64_t high, int64_t channel,
                          Part part, float* o, int64_t o_stride) {
  const int64_t segment_start = low / SEGMENT * SEGMENT;
  F16 sum[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sum[r][n] = zeros();
  }
  for (int64_t sub = low / LANES; sub * LANES < high; ++sub) {
    const int64_t first = larger(low, sub * LANES), last = smaller(high, sub * LANES + LANES);
    const V v(cache, sub), ahead(cache, smaller(sub + AHEAD, (high - 1) / LANES));
    const float* weight = weights + (sub * LANES - segment_start);
    for (int64_t t = first - sub * LANES; t < last - sub * LANES; ++t) {
      F16 row[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        ahead.fetch(t, channel + n * LANES);
        row[n] = v.row(t, channel + n * LANES, part);
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

// Masked scores of R queries at one position over [low, high) of one segment.
template <class K, int R>
void direct_segment_scores(const HeadCache& cache, const float* q, int64_t low, int64_t high, VAhead v_ahead,
                           float* scores) {
  const int64_t first = low / LANES, last = (high + LANES - 1) / LANES, segment = low / SEGMENT * (SEGMENT / LANES);
  scores += (first - segment) * LANES;
  for (int64_t sub = first; sub < last; sub += 2) {
    const Ahead ahead[2] = {tile_ahead<K>(cache, sub, first, last, v_ahead),
                            tile_ahead<K>(cache, sub + 1, first, last, v_ahead)};
    float* out = scores + (sub - first) * LANES;
    if (sub + 2 <= last) {
      direct_scores<K, R, 2>(cache, q, sub, ahead, out);
    } else {
      direct_scores<K, R, 1>(cache, q, sub, ahead, out);
    }
  }
  for (int r = 0; r < R; ++r) {
    float* row = scores + r * SCORE_STRIDE;
    store(row, masked(load(row, Whole{}), first, low, high), Whole{});
    float* tail = row + (last - 1 - first) * LANES;
    store(tail, masked(load(tail, Whole{}), last - 1, low, high), Whole{});
  }
}

template <class V, int R>
void direct_outputs(const HeadCache& cache, const float* weights, int64_t low, int64_t high, float* o,
                    int64_t o_stride) {
  constexpr int N = ACCUMULATORS / R > 4 ? 4 : ACCUMULATORS / R > 0 ? ACCUMULATORS / R : 1;
  const int64_t dim = cache.a.head_dim;
  int64_t channel = 0;
  for (; channel + N * LANES <= dim; channel += N * LANES) {
    direct_values<V, R, N>(cache, weights, low, high, channel, Whole{}, o, o_stride);
  }
  for (; channel + LANES <= dim; channel += LANES) {
    direct_values<V, R, 1>(cache, weights, low, high, channel, Whole{}, o, o_stride);
  }
  if (channel < dim) {
    direct_values<V, R, 1>(cache, weights, low, high, channel, First{int(dim - channel)}, o, o_stride);
  }
}

// Calls body with the number of rows as a compile-time constant.
template <int N>
struct Rows {
  static constexpr int COUNT = N;
};
template <class Body>
INLINE void with_direct_rows(int64_t rows, Body body) {
  switch (rows) {
    case 1: return body(Rows<1>{});
    case 2: return body(Rows<2>{});
    case 3: return body(Rows<3>{});
    case 4: return body(Rows<4>{});
    case 5: return body(Rows<5>{});
    case 6: return body(Rows<6>{});
    case 7: return body(Rows<7>{});
    case 8: return body(Rows<8>{});
  }
}

}  // namespace kvasir::KVASIR_ISA
