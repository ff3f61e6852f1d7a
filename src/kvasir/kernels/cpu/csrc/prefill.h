// Many queries against one KV head.  A chunk of K (then of V) is converted to fp32 once and used by every tile of
// queries; a tile keeps its sums in registers.  Each (query, token) chain is the one of decode.h, so the bits are too.
#pragma once

#include "decode.h"

namespace kvasir::KVASIR_ISA {

#if defined(__AVX512F__)
constexpr int TILE_ROWS = 6, TILE_SUBS = 4;
#elif defined(__AVX__) || defined(__aarch64__)
constexpr int TILE_ROWS = 6, TILE_SUBS = 1;
#else
constexpr int TILE_ROWS = 3, TILE_SUBS = 1;
#endif
constexpr int CHUNK_SUBS = 4;  // sub-blocks converted at a time

// The queries of one block and KV head: row r is query head r % group of token r / group.  Of the tokens at hand
// (the sinks, or what lies behind them) a row sees [low, high).
struct QueryRows {
  int64_t first_position, count, group;
  Visibility sees;

  INLINE int64_t position(int64_t row) const { return first_position + row / group; }
  INLINE int64_t low(int64_t row) const { return sees.oldest(position(row)); }
  INLINE int64_t high(int64_t row) const { return position(row) + 1; }
};

// k: [sub][d][16] of the chunk.
template <class K>
inline void convert_k(const HeadCache& cache, int64_t first_sub, int64_t last_sub, float* k) {
  const int64_t dim = cache.a.head_dim;
  for (int64_t sub = first_sub; sub < last_sub; ++sub) {
    const K tile(cache, sub);
    for (int64_t d = 0; d < dim; ++d, k += LANES) store(k, tile.column(d), Whole{});
  }
}

// v: [token][D rounded up to sixteen].  Returns whether any value is NaN or infinite, be it stale or real.
template <class V>
inline bool convert_v(const HeadCache& cache, int64_t first_sub, int64_t last_sub, float* v) {
  const int64_t dim = cache.a.head_dim, stride = (dim + LANES - 1) / LANES * LANES;
  I16 largest = splat(0);
  for (int64_t sub = first_sub; sub < last_sub; ++sub) {
    const V tile(cache, sub);
    for (int64_t t = 0; t < LANES; ++t, v += stride) {
      for_lanes(dim, [&](int64_t i, auto part) {
        F16 value = tile.row(t, i, part);
        largest = max(largest, as_int(value) & splat(0x7fffffff));
        store(v + i, value, Whole{});
      });
    }
  }
  return max_lanes(largest) >= 0x7f800000;
}

// q: [d][TILE_ROWS].  scores: [r][SCORE_STRIDE].
template <int R, int N>
void tile_scores(const float* q, const float* k, int64_t dim, float* scores) {
  F16 sum[R][N];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sum[r][n] = zeros();
  }
  for (int64_t d = 0; d < dim; ++d) {
    F16 column[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) column[n] = load(k + (n * dim + d) * LANES, Whole{});
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F16 query = splat(q[d * TILE_ROWS + r]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[r][n] = fma(query, column[n], sum[r][n]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(scores + r * SCORE_STRIDE + n * LANES, sum[r][n], Whole{});
  }
}

// o[r] += weights[r][t] * v[t] for t in [0, count), in order.
template <int R, int N>
void tile_values(const float* weights, const float* v, int64_t stride, int64_t count, float* o) {
  F16 sum[R][N];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sum[r][n] = load(o + r * stride + n * LANES, Whole{});
  }
  for (int64_t t = 0; t < count; ++t) {
    F16 row[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) row[n] = load(v + t * stride + n * LANES, Whole{});
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F16 w = splat(weights[r * SCORE_STRIDE + t]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[r][n] = fma(w, row[n], sum[r][n]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(o + r * stride + n * LANES, sum[r][n], Whole{});
  }
}

using TileScores = void (*)(const float*, const float*, int64_t, float*);
using TileValues = void (*)(const float*, const float*, int64_t, int64_t, float*);

template <int R>
struct TileTables {
  static INLINE void scores(int64_t subs, const float* q, const float* k, int64_t dim, float* out) {
    if constexpr (TILE_SUBS == 4) {
      static constexpr TileScores table[4] = {tile_scores<R, 1>, tile_scores<R, 2>, tile_scores<R, 3>, tile_scores<R, 4>};
      table[subs - 1](q, k, dim, out);
    } else {
      for (int64_t n = 0; n < subs; ++n) tile_scores<R, 1>(q, k + n * dim * LANES, dim, out + n * LANES);
    }
  }
  static INLINE void values(const float* weights, const float* v, int64_t stride, int64_t count, float* o) {
    int64_t channel = 0;
    if constexpr (TILE_SUBS == 4) {
      for (; channel + 4 * LANES <= stride; channel += 4 * LANES) {
        tile_values<R, 4>(weights, v + channel, stride, count, o + channel);
      }
    }
    for (; channel < stride; channel += LANES) {
      tile_values<R, 1>(weights, v + channel, stride, count, o + channel);
    }
  }
};

// Calls body with the row count as a compile-time TileTables.
template <class Body>
INLINE void with_tile(int64_t rows, Body body) {
  switch (rows) {
    case 1: return body(TileTables<1>{});
    case 2: return body(TileTables<2>{});
    case 3: return body(TileTables<3>{});
    case 4: return body(TileTables<TILE_ROWS < 4 ? 3 : 4>{});
    case 5: return body(TileTables<TILE_ROWS < 5 ? 3 : 5>{});
    case 6: return body(TileTables<TILE_ROWS < 6 ? 3 : 6>{});
  }
}

struct SegmentRange {
  int64_t start;      // of the segment
  int64_t low, high;  // tokens of it that some query of the block sees
};

// Calls body(row, count, first, last) for every tile of rows and the sub-blocks of [begin, end) that some of it sees.
template <class Body>
INLINE void for_row_tiles(const QueryRows& rows, int64_t begin, int64_t end, Body body) {
  for (int64_t row = 0; row < rows.count; row += TILE_ROWS) {
    const int64_t last_row = smaller(row + TILE_ROWS, rows.count) - 1;
    const int64_t first = larger(begin, rows.low(row) / LANES);
    const int64_t last = smaller(end, (rows.high(last_row) + LANES - 1) / LANES);
    if (first < last) body(row, last_row - row + 1, first, last);
  }
}

// -inf where a row of the tile does not see.  scores: of the tile's first row at sub-block ``first``.
inline void mask_tile(const QueryRows& rows, int64_t row, int64_t count, int64_t first, int64_t last, float* scores) {
  if (first * LANES >= rows.low(row + count - 1) && last * LANES <= rows.high(row)) return;
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t sub = first; sub < last; ++sub) {
      float* s = scores + r * SCORE_STRIDE + (sub - first) * LANES;
      store(s, masked(load(s, Whole{}), sub, rows.low(row + r), rows.high(row + r)), Whole{});
    }
  }
}

// Masked scores of all rows against [range.low, range.high).  q: [tile][d][TILE_ROWS], scores: [row][SCORE_STRIDE].
template <class K>
void block_scores(const HeadCache& cache, const QueryRows& rows, const SegmentRange& range, const float* q, float* k,
                  float* scores) {
  const int64_t dim = cache.a.head_dim, last_sub = (range.high + LANES - 1) / LANES;
  for (int64_t chunk = range.low / LANES; chunk < last_sub; chunk += CHUNK_SUBS) {
    const int64_t chunk_end = smaller(chunk + CHUNK_SUBS, last_sub);
    convert_k<K>(cache, chunk, chunk_end, k);
    for_row_tiles(rows, chunk, chunk_end, [&](int64_t row, int64_t count, int64_t first, int64_t last) {
      float* out = scores + row * SCORE_STRIDE + (first * LANES - range.start);
      with_tile(count, [&](auto tile) {
        tile.scores(last - first, q + row * dim, k + (first - chunk) * dim * LANES, dim, out);
      });
      mask_tile(rows, row, count, first, last, out);
    });
  }
}

// Weighted sums of V for all rows; o: [row][D rounded up], overwritten.
template <class V>
void block_values(const HeadCache& cache, const QueryRows& rows, const SegmentRange& range, const float* weights,
                  float* v, float* o) {
  const int64_t stride = (cache.a.head_dim + LANES - 1) / LANES * LANES, last_sub = (range.high + LANES - 1) / LANES;
  memset(o, 0, rows.count * stride * sizeof(float));
  for (int64_t chunk = range.low / LANES; chunk < last_sub; chunk += CHUNK_SUBS) {
    const int64_t chunk_end = smaller(chunk + CHUNK_SUBS, last_sub), chunk_start = chunk * LANES;
    const bool has_special = convert_v<V>(cache, chunk, chunk_end, v);
    for (int64_t row = 0; row < rows.count; row += TILE_ROWS) {
      const int64_t last_row = smaller(row + TILE_ROWS, rows.count) - 1;
      const int64_t first = larger(larger(chunk_start, range.low), rows.low(row));
      const int64_t last = smaller(smaller(chunk_end * LANES, range.high), rows.high(last_row));
      if (first >= last) continue;
      if (has_special && (first < rows.low(last_row) || last > rows.high(row))) {
        // 0 * NaN is NaN: a row must not touch what it does not see.
        for (int64_t r = row; r <= last_row; ++r) {
          const int64_t from = larger(first, rows.low(r)), to = smaller(last, rows.high(r));
          if (from >= to) continue;
          TileTables<1>::values(weights + r * SCORE_STRIDE + (from - range.start), v + (from - chunk_start) * stride, stride,
                                to - from, o + r * stride);
        }
        continue;
      }
      with_tile(last_row - row + 1, [&](auto tile) {
        tile.values(weights + row * SCORE_STRIDE + (first - range.start), v + (first - chunk_start) * stride, stride,
                    last - first, o + row * stride);
      });
    }
  }
}

// The sub-blocks that scores were written for: those some row of the same tile sees.
struct TileRange {
  int64_t first, last;

  INLINE TileRange(const QueryRows& rows, const SegmentRange& range, int64_t row) {
    const int64_t tile = row / TILE_ROWS * TILE_ROWS, last_row = smaller(tile + TILE_ROWS, rows.count) - 1;
    first = larger(range.low, rows.low(tile)) / LANES;
    last = (smaller(range.high, rows.high(last_row)) + LANES - 1) / LANES;
  }
};

// Scores to weights, row by row; a row that sees nothing of the segment gets sum 0.
inline void block_softmax(const QueryRows& rows, const SegmentRange& range, float* scores, const float* factors,
                          float* largest, float* sum) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const auto [first, last] = TileRange(rows, range, row);
    float* row_scores = scores + row * SCORE_STRIDE + (first * LANES - range.start);
    if (larger(range.low, rows.low(row)) >= smaller(range.high, rows.high(row))) {
      if (first < last) memset(row_scores, 0, (last - first) * LANES * sizeof(float));
      largest[row] = -__builtin_inff();
      sum[row] = 0.0f;
      continue;
    }
    softmax_row(row_scores, factors ? factors[row] : 1.0f, last - first, largest + row, sum + row);
  }
}

}  // namespace kvasir::KVASIR_ISA
