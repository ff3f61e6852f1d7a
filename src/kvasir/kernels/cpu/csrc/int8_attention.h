// Attention over int8 K and V in integers.  q . k: the query is quantised per token and head.  P . V: the weights of one
// row are quantised per sixteen tokens, with V's token scales folded in before.
//
// What a query gets is decided by its position alone, here as in prefill.h: codes of P are made from a row's own weights
// per sub-block of absolute positions, and products of integers are exact.
#pragma once

#include "int8_tiles.h"
#include "prefill.h"

namespace kvasir::KVASIR_ISA {

// Rows and sub-blocks (scores) or sixteens of channels (values) that registers hold at a time.
#if defined(__AVX512F__)
constexpr int DOT_ROWS = 6, DOT_SUBS = 4, SUM_ROWS = 6, SUM_CHANNELS = 2;
#else
constexpr int DOT_ROWS = 3, DOT_SUBS = 1, SUM_ROWS = 2, SUM_CHANNELS = 1;
#endif

// The queries of a block as codes: q [tile][D / 4][TILE_ROWS][4], and per row what turns a sum into a score.
struct CodedQueries {
  int8_t* codes;
  float* factor;    // query scale * softmax scale * log2(e)
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
    factor[r] *= scale;
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
INLINE void dot_tile(const CodedQueries& q, const Int8K (&k)[N], const Ahead (&ahead)[N], int64_t dim, float* scores) {
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
      store(scores + r * SCORE_STRIDE + n * LANES, to_float(sum[r][n]) * scales * splat(q.factor[r]), Whole{});
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

// Scores of one tile of rows against sub-blocks [first, last).
template <bool IS_DIRECT>
INLINE void coded_tile_scores(const HeadCache& cache, const CodedQueries& q, int64_t rows, int64_t first, int64_t last,
                              int64_t end, VAhead v_ahead, float* scores) {
  const int64_t dim = cache.a.head_dim;
  const auto next = [&](int64_t sub, int64_t from) {
    if constexpr (IS_DIRECT) return tile_ahead<Int8K>(cache, sub, from, end, v_ahead);
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
          const Int8K k[4] = {{cache, sub}, {cache, sub + 1}, {cache, sub + 2}, {cache, sub + 3}};
          const Ahead ahead[4] = {next(sub, first), next(sub + 1, first), next(sub + 2, first), next(sub + 3, first)};
          dot_tile<R, 4, IS_DIRECT>(part, k, ahead, dim, out);
        }
      }
      for (; sub < last; ++sub, out += LANES) {
        const Int8K k[1] = {{cache, sub}};
        const Ahead ahead[1] = {next(sub, first)};
        dot_tile<R, 1, IS_DIRECT>(part, k, ahead, dim, out);
      }
    });
  }
}

// Masked scores of all rows against [range.low, range.high); scores: [row][SCORE_STRIDE].
template <bool IS_DIRECT>
void coded_scores(const HeadCache& cache, const QueryRows& rows, const SegmentRange& range, const CodedQueries& q,
                  VAhead v_ahead, float* scores) {
  const int64_t dim = cache.a.head_dim, end = (range.high + LANES - 1) / LANES;
  constexpr int64_t TOGETHER = CHUNK_SUBS;
  for (int64_t chunk = range.low / LANES; chunk < end; chunk += TOGETHER) {
    for_row_tiles(rows, chunk, smaller(chunk + TOGETHER, end), [&](int64_t row, int64_t count, int64_t first, int64_t last) {
      float* out = scores + row * SCORE_STRIDE + (first * LANES - range.start);
      const CodedQueries tile{q.codes + row * dim, q.factor + row, q.start + row};
      coded_tile_scores<IS_DIRECT>(cache, tile, count, first, last, end, v_ahead, out);
      mask_tile(rows, row, count, first, last, out);
    });
  }
}

// P of a block as codes: [row][SCORE_STRIDE] bytes in [0, 127], and their scale per sub-block, [row][SEGMENT / 16].
struct CodedWeights {
  static constexpr int64_t SUBS = SEGMENT / LANES;
  int8_t* codes;
  float* scales;

  static INLINE int64_t floats(int64_t rows) { return rows * (SCORE_STRIDE / 4 + SUBS); }
  static INLINE CodedWeights at(float* memory, int64_t rows) { return {(int8_t*)(memory + rows * SUBS), memory}; }
};

// Codes of sixteen weights with V's scales folded in.  A weight of zero has code zero whatever the scale is: what a
// query does not see cannot touch it.  A visible token whose scale is NaN makes the sub-block NaN.
INLINE void code_weights(F16 weight, F16 v_scales, int8_t* codes, float* scale) {
  const F16 folded = select(weight > zeros(), weight * v_scales, weight);
  const int32_t bits = max_lanes(as_int(folded) & splat(0x7fffffff));
  float largest;
  memcpy(&largest, &bits, 4);
  if (bits >= 0x7f800000 || largest < 0x1p-116f) {
    memset(codes, 0, LANES);
    *scale = bits >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
    return;
  }
  *scale = largest * (1.0f / 127.0f);
  store_codes(codes, folded * splat(127.0f / largest));
}

// Scores of one query over a run of sub-blocks to coded weights.  Sets the largest score and the sum of weights.
INLINE void softmax_codes(const float* scores, const float* v_scales, int64_t num_subs, int8_t* codes, float* scales,
                          float* largest, float* sum) {
  F16 top = splat(-__builtin_inff());
  for (int64_t n = 0; n < num_subs; ++n) top = max(top, load(scores + n * LANES, Whole{}));
  const F16 m = splat(max_lanes(top));
  F16 total = zeros();
  for (int64_t i = 0; i < num_subs; ++i) {
    const F16 weight = exp2_nonpositive(load(scores + i * LANES, Whole{}) - m);
    total = total + weight;
    code_weights(weight, load(v_scales + i * LANES, Whole{}), codes + i * LANES, scales + i);
  }
  *largest = m.part[0][0];
  *sum = sum_lanes(total);
}

// Scores to coded weights, row by row; a row that sees nothing of the segment gets sum 0.
inline void coded_softmax(const QueryRows& rows, const SegmentRange& range, const float* scores, const float* v_scales,
                          const CodedWeights& weights, float* largest, float* sum) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const TileRange tile(rows, range, row);
    const int64_t at = tile.first - range.start / LANES;
    int8_t* codes = weights.codes + row * SCORE_STRIDE + at * LANES;
    float* scales = weights.scales + row * CodedWeights::SUBS + at;
    if (larger(range.low, rows.low(row)) >= smaller(range.high, rows.high(row))) {
      for (int64_t n = 0; n < tile.last - tile.first; ++n) scales[n] = 0.0f;
      if (tile.first < tile.last) memset(codes, 0, (tile.last - tile.first) * LANES);
      largest[row] = -__builtin_inff();
      sum[row] = 0.0f;
      continue;
    }
    softmax_codes(scores + row * SCORE_STRIDE + at * LANES, v_scales + at * LANES, tile.last - tile.first, codes, scales,
                  largest + row, sum + row);
  }
}

// o[r][channels] += codes . V over sub-blocks [first, last), one after the other.
template <int R, int N, bool IS_DIRECT>
INLINE void sum_tile(const HeadCache& cache, const CodedWeights& weights, int64_t start, int64_t first, int64_t last,
                     int64_t end, int64_t channel, float* o, int64_t stride) {
  const int64_t dim = cache.a.head_dim;
  F16 sum[R][N];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sum[r][n] = load(o + r * stride + channel + n * LANES, Whole{});
  }
  for (int64_t sub = first; sub < last; ++sub) {
    const int8_t* v = Int8V(cache, sub).at + channel * 4;
    const char* ahead = nullptr;
    if (IS_DIRECT) ahead = (const char*)Int8V(cache, smaller(sub + AHEAD, end - 1)).at + channel * 4;
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
      const F16 scale = splat(weights.scales[r * CodedWeights::SUBS + (sub - start)]);
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
void coded_values(const HeadCache& cache, const QueryRows& rows, const SegmentRange& range, const CodedWeights& weights,
                  int64_t stride, float* o) {
  constexpr int64_t TOGETHER = IS_DIRECT ? SEGMENT / LANES : CHUNK_SUBS;
  const int64_t end = (range.high + LANES - 1) / LANES, start = range.start / LANES;
  memset(o, 0, rows.count * stride * sizeof(float));
  for (int64_t chunk = range.low / LANES; chunk < end; chunk += TOGETHER) {
    for_row_tiles(rows, chunk, smaller(chunk + TOGETHER, end), [&](int64_t tile, int64_t count, int64_t first, int64_t last) {
      for (int64_t row = tile; row < tile + count; row += SUM_ROWS) {
        const CodedWeights part{weights.codes + row * SCORE_STRIDE, weights.scales + row * CodedWeights::SUBS};
        float* out = o + row * stride;
        with_rows<SUM_ROWS>(smaller(SUM_ROWS, tile + count - row), [&](auto rows_now) {
          constexpr int R = decltype(rows_now)::COUNT, N = SUM_CHANNELS;
          int64_t channel = 0;
          for (; channel + N * LANES <= stride; channel += N * LANES) {
            sum_tile<R, N, IS_DIRECT>(cache, part, start, first, last, end, channel, out, stride);
          }
          for (; channel < stride; channel += LANES) {
            sum_tile<R, 1, IS_DIRECT>(cache, part, start, first, last, end, channel, out, stride);
          }
        });
      }
    });
  }
}

}  // namespace kvasir::KVASIR_ISA
