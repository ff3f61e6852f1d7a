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

constexpr int64_t SUBS = SEGMENT / LANES;

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

// Below this the inverse of a sub-block's largest weight would overflow.
constexpr float SMALLEST_CODED = 0x1p-116f;

// P of a block as codes: [row][SCORE_STRIDE] bytes in [0, 127], and their scale per sub-block, [row][SEGMENT / 16].
struct CodedWeights {
  int8_t* codes;
  float* scales;

  static INLINE int64_t floats(int64_t rows) { return rows * (SCORE_STRIDE / 4 + SUBS) + LANES; }
  static INLINE CodedWeights at(float* memory, int64_t rows) { return {(int8_t*)(memory + rows * SUBS + LANES), memory}; }
};

// 2^x for x <= 0 with a relative error of 1e-4, a fiftieth of what the codes round off; 0 below -126.
INLINE F16 exp2_coarse(F16 x) {
  const auto fraction = [](F16 r) {
    F16 p = fma(splat(0x1.c2a216p-5f), r, splat(0x1.f00c4cp-3f));
    p = fma(p, r, splat(0x1.62f5fap-1f));
    return fma(p, r, splat(1.0f));
  };
  return exp2_nonpositive(x, fraction);
}

#if defined(__AVX512F__)
// The largest lane of each of four vectors that hold no negative number; NaN counts as the largest.
INLINE __m128 largest_of_four(const __m512 (&v)[4]) {
  const auto larger_of = [](__m512i a, __m512i b) { return _mm512_max_epu32(a, b); };
  const __m512i a = _mm512_castps_si512(v[0]), b = _mm512_castps_si512(v[1]);
  const __m512i c = _mm512_castps_si512(v[2]), d = _mm512_castps_si512(v[3]);
  const __m512i ab = larger_of(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = larger_of(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i abcd = larger_of(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half = _mm256_max_epu32(_mm512_castsi512_si256(abcd), _mm512_extracti64x4_epi64(abcd, 1));
  return _mm_castsi128_ps(_mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

#endif

// A weight of zero stays zero whatever V's scale is: what a query does not see cannot touch it.
INLINE F16 with_v_scales(F16 weight, F16 v_scales) {
#if defined(__AVX512F__)
  const __m512 w = (__m512)weight.part[0];
  const __mmask16 is_kept = _mm512_test_epi32_mask(_mm512_castps_si512(w), _mm512_castps_si512(w));
  F16 folded;
  folded.part[0] = (native_f)_mm512_maskz_mul_ps(is_kept, w, (__m512)v_scales.part[0]);
  return folded;
#else
  return select(weight > zeros(), weight * v_scales, weight);
#endif
}

// Scores of one query over a run of sub-blocks to weights with V's scales folded in, in place, and the largest of each
// sub-block; returns the sum of the weights without V's scales.
INLINE float fold_weights(float* scores, F16 rise, F16 fall, const float* v_scales, int64_t num_subs, float* tops) {
  F16 total = zeros();
  const auto next = [&](int64_t sub) {
    const F16 weight = exp2_coarse(fma(load(scores + sub * LANES, Whole{}), rise, fall));
    total = total + weight;
    const F16 folded = with_v_scales(weight, load(v_scales + sub * LANES, Whole{}));
    store(scores + sub * LANES, folded, Whole{});
    return folded;
  };
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 4 <= num_subs; i += 4) {
    __m512 folded[4];
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) folded[n] = (__m512)next(i + n).part[0];
    _mm_storeu_ps(tops + i, largest_of_four(folded));
  }
#endif
  for (; i < num_subs; ++i) {
    const int32_t bits = max_lanes(as_int(next(i)) & splat(0x7fffffff));
    memcpy(tops + i, &bits, 4);
  }
  return sum_lanes(total);
}

INLINE void code_weights(const float* folded, const float* inverse, int64_t num_subs, int8_t* codes) {
  int64_t i = 0;
#if defined(__AVX512F__)
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (; i + 4 <= num_subs; i += 4) {
    __m512i rounded[4];
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      const __m512 values = _mm512_loadu_ps(folded + (i + n) * LANES);
      rounded[n] = _mm512_cvtps_epi32(_mm512_mul_ps(values, _mm512_set1_ps(inverse[i + n])));
    }
    const __m512i packed = _mm512_packs_epi16(_mm512_packs_epi32(rounded[0], rounded[1]),
                                              _mm512_packs_epi32(rounded[2], rounded[3]));
    _mm512_storeu_si512(codes + i * LANES, _mm512_permutexvar_epi32(order, packed));
  }
#endif
  for (; i < num_subs; ++i) {
    store_codes(codes + i * LANES, load(folded + i * LANES, Whole{}) * splat(inverse[i]));
  }
}

// Scores of one query over a run of sub-blocks to coded weights; ``scores`` is used up.  Sets the largest score and the
// sum of weights.  A visible token whose scale is NaN makes its sub-block NaN.  ``scales`` has room for whole vectors.
INLINE void softmax_codes(float* scores, float factor, const float* v_scales, int64_t num_subs, int8_t* codes,
                          float* scales, float* largest, float* sum) {
  alignas(64) float tops[SUBS] = {}, inverse[SUBS];
  *largest = largest_score(scores, num_subs) * factor;
  *sum = fold_weights(scores, splat(factor), splat(-*largest), v_scales, num_subs, tops);
  for (int64_t i = 0; i < num_subs; i += LANES) {
    const F16 top = load(tops + i, Whole{});
    const I16 is_nothing = top < splat(SMALLEST_CODED);
    store(scales + i, select(is_nothing, zeros(), top * splat(1.0f / 127.0f)), Whole{});
    store(inverse + i, select(is_nothing, zeros(), splat(127.0f) / top), Whole{});
  }
  code_weights(scores, inverse, num_subs, codes);
}

// Scores to coded weights, row by row; a row that sees nothing of the segment gets sum 0.
inline void coded_softmax(const QueryRows& rows, const SegmentRange& range, float* scores, const float* factors,
                          const float* v_scales, const CodedWeights& weights, float* largest, float* sum) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const TileRange tile(rows, range, row);
    const int64_t at = tile.first - range.start / LANES;
    int8_t* codes = weights.codes + row * SCORE_STRIDE + at * LANES;
    float* scales = weights.scales + row * SUBS + at;
    if (larger(range.low, rows.low(row)) >= smaller(range.high, rows.high(row))) {
      for (int64_t n = 0; n < tile.last - tile.first; ++n) scales[n] = 0.0f;
      if (tile.first < tile.last) memset(codes, 0, (tile.last - tile.first) * LANES);
      largest[row] = -__builtin_inff();
      sum[row] = 0.0f;
      continue;
    }
    softmax_codes(scores + row * SCORE_STRIDE + at * LANES, factors ? factors[row] : 1.0f, v_scales + at * LANES,
                  tile.last - tile.first, codes, scales, largest + row, sum + row);
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
