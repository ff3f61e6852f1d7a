// Attention over int8 K and V in integers.  q . k: the query is quantised per token and head.  P . V: the weights of one
// row are quantised per sixteen tokens, with V's token scales folded in before.
//
// What a query gets is decided by its position alone, here as in prefill.h: codes of P are made from a row's own weights
// per sub-block of absolute positions, and products of integers are exact.
#pragma once

#include "int8_softmax.h"
#include "int8_tiles.h"

namespace kvasir::KVASIR_ISA {

// Rows and sub-blocks (scores) or sixteens of channels (values) that registers hold at a time.
#if defined(__AVX512F__)
constexpr int DOT_ROWS = 6, DOT_SUBS = 4, SUM_ROWS = 6, SUM_CHANNELS = 2;
#else
constexpr int DOT_ROWS = 3, DOT_SUBS = 1, SUM_ROWS = 2, SUM_CHANNELS = 1;
#endif

// Where the sub-blocks of a segment lie, looked up once for all rows.
template <class Tile>
struct SegmentTiles {
  int64_t start;
  Tile tiles[SUBS];

  INLINE SegmentTiles(const HeadCache& cache, const SegmentRange& range) : start(range.start / LANES) {
    for (int64_t sub = range.low / LANES; sub * LANES < range.high; ++sub) tiles[sub - start] = Tile(cache, sub);
  }
  // The tile of sub-block ``sub``; the next ones follow.
  INLINE const Tile* from(int64_t sub) const { return tiles + (sub - start); }
};

// The queries of a block as codes: q [tile][D / 4][TILE_ROWS][4], and per row what turns a sum into a score.
struct CodedQueries {
  int8_t* codes;
  float* factor;    // query scale * softmax scale * log2(e): the softmax applies it
  int32_t* start;   // of the sum

  static INLINE int64_t floats(int64_t rows, int64_t dim) {
    return (rows + TILE_ROWS) * (dim / 4 + 2);
  }
  static INLINE CodedQueries at(float* memory, int64_t rows, int64_t dim) {
    float* factor = memory + (rows + TILE_ROWS) * (dim / 4);
    return {(int8_t*)memory, factor, (int32_t*)(factor + rows + TILE_ROWS)};
  }
  // ``buffer``: two padded rows of floats.
  INLINE void set(int64_t r, const float* query, int64_t dim, float scale, float* buffer) const {
    memcpy(buffer, query, dim * sizeof(float));
    for (int64_t i = dim; i < padded(dim); ++i) buffer[i] = 0.0f;
    int8_t* row = (int8_t*)(buffer + padded(dim));
    quantise(buffer, dim, row, factor + r);
    // Never 0, which would make NaN of the -inf of masked scores: a zero query has sums of 0, whatever their factor.
    const float product = factor[r] * scale;
    factor[r] = product < 0x1p-126f ? 0x1p-126f : product;
    int8_t* tile = codes + r / TILE_ROWS * TILE_ROWS * dim + r % TILE_ROWS * 4;
    int32_t sum = 0;
    for (int64_t d = 0; d < dim; ++d) {
      sum += row[d];
      tile[d / 4 * TILE_ROWS * 4 + d % 4] = row[d];
    }
    start[r] = -STORED_OFFSET * sum;
  }
};

template <int R, int N, bool IS_DIRECT>
INLINE void dot_tile(const CodedQueries& q, const Int8K* tiles, const Ahead (&ahead)[N], int64_t dim, float* scores) {
  Int8K k[N];
  for (int n = 0; n < N; ++n) k[n] = tiles[n];
  I16 sum[R][N];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sum[r][n] = splat(q.start[r]);
  }
  for (int64_t d = 0; d < dim / 4; ++d) {
    B16 column[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      if (IS_DIRECT) __builtin_prefetch(ahead[n].at + 4 * d * ahead[n].stride);
      column[n] = as_signed(load_bytes(k[n].at + d * k[n].stride));
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const B16 query = splat_bytes(q.codes + (d * TILE_ROWS + r) * 4);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[r][n] = dot_signed(sum[r][n], column[n], query);
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    if (IS_DIRECT) __builtin_prefetch(ahead[n].at + dim * ahead[n].stride);  // the scales, when the block is one sub-block
    const F16 scales = load(k[n].scales, Whole{});
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      store(scores + r * SCORE_STRIDE + n * LANES, to_float(sum[r][n]) * scales, Whole{});
    }
  }
}

// Calls body(Rows<n>) for n = rows, at most MOST.
template <int MOST, class Body>
INLINE void with_rows(int64_t rows, Body body) {
  if constexpr (MOST > 1) {
    if (rows < MOST) return with_rows<MOST - 1>(rows, body);
  }
  body(Rows<MOST>{});
}

// Scores of one tile of rows against sub-blocks [first, last); ``tiles``: K from ``first`` on.
template <bool IS_DIRECT>
INLINE void coded_tile_scores(const HeadCache& cache, const CodedQueries& q, const Int8K* tiles, int64_t rows,
                              int64_t first, int64_t last, int64_t end, VAhead v_ahead, float* scores) {
  const int64_t dim = cache.a.head_dim;
  const auto next = [&](int64_t sub) {
    if constexpr (IS_DIRECT) return tile_ahead<Int8K>(cache, sub, first, end, v_ahead);
    else return Ahead{};
  };
  for (int64_t row = 0; row < rows; row += DOT_ROWS) {
    const CodedQueries part{q.codes + row * 4, q.factor + row, q.start + row};
    with_rows<DOT_ROWS>(smaller(DOT_ROWS, rows - row), [&](auto count) {
      constexpr int R = decltype(count)::COUNT;
      int64_t sub = first;
      float* out = scores + row * SCORE_STRIDE;
      if constexpr (DOT_SUBS == 4) {
        for (; sub + 4 <= last; sub += 4, out += 4 * LANES) {
          const Ahead ahead[4] = {next(sub), next(sub + 1), next(sub + 2), next(sub + 3)};
          dot_tile<R, 4, IS_DIRECT>(part, tiles + (sub - first), ahead, dim, out);
        }
      }
      for (; sub < last; ++sub, out += LANES) {
        const Ahead ahead[1] = {next(sub)};
        dot_tile<R, 1, IS_DIRECT>(part, tiles + (sub - first), ahead, dim, out);
      }
    });
  }
}

// Masked scores of all rows against [range.low, range.high); scores: [row][SCORE_STRIDE].
template <bool IS_DIRECT>
void coded_scores(const HeadCache& cache, const QueryRows& rows, const SegmentRange& range, const CodedQueries& q,
                  VAhead v_ahead, float* scores) {
  const int64_t dim = cache.a.head_dim, end = (range.high + LANES - 1) / LANES;
  constexpr int64_t TOGETHER = IS_DIRECT ? SUBS : SUBS / 2;
  const SegmentTiles<Int8K> tiles(cache, range);
  for (int64_t chunk = range.low / LANES; chunk < end; chunk += TOGETHER) {
    for_row_tiles(rows, chunk, smaller(chunk + TOGETHER, end), [&](int64_t row, int64_t count, int64_t first, int64_t last) {
      float* out = scores + row * SCORE_STRIDE + (first * LANES - range.start);
      const CodedQueries tile{q.codes + row * dim, q.factor + row, q.start + row};
      coded_tile_scores<IS_DIRECT>(cache, tile, tiles.from(first), count, first, last, end, v_ahead, out);
      mask_tile(rows, row, count, first, last, out);
    });
  }
}

// o[r][channels] += codes . V over sub-blocks [first, last), one after the other.
template <int R, int N, bool IS_DIRECT>
INLINE void sum_tile(const SegmentTiles<Int8V>& tiles, const CodedWeights& weights, int64_t first, int64_t last,
                     int64_t end, int64_t channel, int64_t dim, float* o, int64_t stride) {
  const int64_t start = tiles.start;
  F16 sum[R][N];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sum[r][n] = load(o + r * stride + channel + n * LANES, Whole{});
  }
  for (int64_t sub = first; sub < last; ++sub) {
    const int8_t* v = tiles.from(sub)->at + channel * 4;
    const int8_t* ahead = nullptr;
    if (IS_DIRECT) ahead = tiles.from(smaller(sub + AHEAD, end - 1))->at + channel * 4;
    const int8_t* codes = weights.codes + (sub - start) * LANES;
    I16 product[R][N];
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
      B16 four[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        if (IS_DIRECT) __builtin_prefetch(ahead + g * dim * 4 + n * 64);
        four[n] = load_bytes(v + g * dim * 4 + n * 64);
      }
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const B16 weight = splat_bytes(codes + r * SCORE_STRIDE + g * 4);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) product[r][n] = dot(g ? product[r][n] : splat(0), weight, four[n]);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F16 scale = splat(weights.scales[r * SUBS + (sub - start)]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[r][n] = fma(scale, to_float(product[r][n]), sum[r][n]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(o + r * stride + channel + n * LANES, sum[r][n], Whole{});
  }
}

// Weighted sums of V for all rows; o: [row][D rounded up], overwritten.  Channels behind D hold what lies behind a tile's
// rows (other codes or scales) and are not read by anybody.
template <bool IS_DIRECT>
void coded_values(const SegmentTiles<Int8V>& tiles, const QueryRows& rows, const SegmentRange& range,
                  const CodedWeights& weights, int64_t dim, int64_t stride, float* o) {
  constexpr int64_t TOGETHER = IS_DIRECT ? SUBS : SUBS / 2;
  const int64_t end = (range.high + LANES - 1) / LANES;
  memset(o, 0, rows.count * stride * sizeof(float));
  for (int64_t chunk = range.low / LANES; chunk < end; chunk += TOGETHER) {
    for_row_tiles(rows, chunk, smaller(chunk + TOGETHER, end), [&](int64_t tile, int64_t count, int64_t first, int64_t last) {
      for (int64_t row = tile; row < tile + count; row += SUM_ROWS) {
        const CodedWeights part{weights.codes + row * SCORE_STRIDE, weights.scales + row * SUBS};
        float* out = o + row * stride;
        with_rows<SUM_ROWS>(smaller(SUM_ROWS, tile + count - row), [&](auto rows_now) {
          constexpr int R = decltype(rows_now)::COUNT, N = SUM_CHANNELS;
          int64_t channel = 0;
          for (; channel + N * LANES <= stride; channel += N * LANES) {
            sum_tile<R, N, IS_DIRECT>(tiles, part, first, last, end, channel, dim, out, stride);
          }
          for (; channel < stride; channel += LANES) {
            sum_tile<R, 1, IS_DIRECT>(tiles, part, first, last, end, channel, dim, out, stride);
          }
        });
      }
    });
  }
}

}  // namespace kvasir::KVASIR_ISA
