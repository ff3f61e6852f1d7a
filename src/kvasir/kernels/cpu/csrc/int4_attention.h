// Attention over int4 K and V in integers, straight on the codes.
//
// q . k: the query is rotated as K was and quantised per token and head; a group's score is scale * (codes . query) +
// zero point * (sum of query).  P . V: as for int8 (a row's weights are quantised per sixteen tokens with V's scales
// folded in), once per group; zero points and second centres are weighted in fp32.
#pragma once

#include "int4_tiles.h"
#include "int8_attention.h"

namespace kvasir::KVASIR_ISA {

// Rows and sub-blocks (scores) or rows alone (values, 32 channels) that registers hold at a time.
#if defined(__AVX512F__)
constexpr int DOT4_ROWS = 6, DOT4_SUBS = 4, SUM4_ROWS = 6;
#else
constexpr int DOT4_ROWS = 3, DOT4_SUBS = 1, SUM4_ROWS = 1;
#endif

// Mean of the codes: what is lost where weights are rounded is made up for at this value.
constexpr float MIDDLE_CODE = 7.5f;

// The queries of a block as codes, as in CodedQueries, with what int4 needs besides.
struct Int4Queries {
  int8_t* codes;   // [tile][D / 4][TILE_ROWS][4]
  float* factor;   // [rows]: query scale * softmax scale * log2(e)
  float* offset;   // [rows]: what a token scores more when its second centre was taken off
  float* sums;     // [rows][groups]: of the codes

  static INLINE int64_t floats(int64_t rows, const Int4Shape& shape) {
    return (rows + TILE_ROWS) * (shape.dim / 4 + 2 + shape.num_groups);
  }
  static INLINE Int4Queries at(float* memory, int64_t rows, const Int4Shape& shape) {
    const int64_t room = rows + TILE_ROWS;
    float* factor = memory + room * (shape.dim / 4);
    return {(int8_t*)memory, factor, factor + room, factor + 2 * room};
  }
  INLINE Int4Queries from_row(int64_t row, const Int4Shape& shape) const {
    return {codes + row / TILE_ROWS * TILE_ROWS * shape.dim + row % TILE_ROWS * 4, factor + row, offset + row,
            sums + row * shape.num_groups};
  }
  // ``center``, ``sink``: of the head, may be null.  ``buffer``: two rows of floats.
  INLINE void set(int64_t r, const float* query, const Int4Shape& shape, const float* center, const float* sink, float scale,
                  float* buffer) const {
    const int64_t dim = shape.dim;
    offset[r] = 0.0f;
    if (sink) {
      F16 difference = zeros();
      for (int64_t d = 0; d < dim; d += LANES) {
        F16 between = load(sink + d, Whole{});
        if (center) between = between - load(center + d, Whole{});
        difference = fma(load(query + d, Whole{}), between, difference);
      }
      offset[r] = sum_lanes(difference) * scale;
    }
    memcpy(buffer, query, dim * sizeof(float));
    rotate(buffer, dim, shape.rotation());
    int8_t* row = (int8_t*)(buffer + dim);
    quantise(buffer, dim, row, factor + r);
    factor[r] *= scale;
    int8_t* tile = codes + r / TILE_ROWS * TILE_ROWS * dim + r % TILE_ROWS * 4;
    for (int64_t d = 0; d < dim; d += 4) memcpy(tile + d * TILE_ROWS, row + d, 4);
    for (int64_t g = 0; g < shape.num_groups; ++g) {
      int32_t sum = 0;
      for (int64_t d = g * shape.group; d < (g + 1) * shape.group; ++d) sum += row[d];
      sums[r * shape.num_groups + g] = float(sum);
    }
  }
};

template <int R, int N, bool IS_DIRECT>
INLINE void int4_dot_tile(const Int4Queries& q, const Int4K (&k)[N], const Ahead (&ahead)[N], const Int4Shape& shape, float* scores) {
  for (int64_t g = 0; g < shape.num_groups; ++g) {
    I16 sum[R][N];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[r][n] = splat(0);
    }
    for (int64_t i = g * shape.group / 8; i < (g + 1) * shape.group / 8; ++i) {
      const int8_t* query = q.codes + 2 * i * TILE_ROWS * 4;
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        if (IS_DIRECT) __builtin_prefetch(ahead[n].at + 8 * i * ahead[n].stride);
        const Nibbles column = load_nibbles(k[n].at + i * k[n].stride);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
          sum[r][n] = dot(sum[r][n], column.low, splat_bytes(query + r * 4));
          sum[r][n] = dot(sum[r][n], column.high, splat_bytes(query + (TILE_ROWS + r) * 4));
        }
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const F16 scale = k[n].metadata.scale(g), zero = k[n].metadata.zero(g);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        float* out = scores + r * SCORE_STRIDE + n * LANES;
        F16 score = fma(zero, splat(q.sums[r * shape.num_groups + g]), to_float(sum[r][n]) * scale);
        if (g) score = score + load(out, Whole{});
        if (g + 1 == shape.num_groups) {
          const F16 offset = select(k[n].metadata.is_sink(), splat(q.offset[r]), zeros());
          score = fma(score, splat(q.factor[r]), offset);
        }
        store(out, score, Whole{});
      }
    }
  }
}

// Scores of one tile of rows against sub-blocks [first, last) of the segment, which ends at ``end``.
template <bool IS_DIRECT>
INLINE void int4_tile_scores(const HeadCache& cache, const Int4Shape& shape, const Int4Queries& q, int64_t rows, int64_t first, int64_t last,
                             int64_t end, VAhead v_ahead, float* scores) {
  const auto next = [&](int64_t sub) {
    if constexpr (IS_DIRECT) return tile_ahead<Int4K>(cache, sub, first, end, v_ahead);
    else return Ahead{};
  };
  const auto tile = [&](int64_t sub) { return Int4K(cache, shape, sub); };
  for (int64_t row = 0; row < rows; row += DOT4_ROWS) {
    const Int4Queries part = q.from_row(row, shape);
    with_rows<DOT4_ROWS>(smaller(DOT4_ROWS, rows - row), [&](auto count) {
      constexpr int R = decltype(count)::COUNT;
      int64_t sub = first;
      float* out = scores + row * SCORE_STRIDE;
      if constexpr (DOT4_SUBS == 4) {
        for (; sub + 4 <= last; sub += 4, out += 4 * LANES) {
          const Int4K k[4] = {tile(sub), tile(sub + 1), tile(sub + 2), tile(sub + 3)};
          const Ahead ahead[4] = {next(sub), next(sub + 1), next(sub + 2), next(sub + 3)};
          int4_dot_tile<R, 4, IS_DIRECT>(part, k, ahead, shape, out);
        }
      }
      for (; sub < last; ++sub, out += LANES) {
        const Int4K k[1] = {tile(sub)};
        const Ahead ahead[1] = {next(sub)};
        int4_dot_tile<R, 1, IS_DIRECT>(part, k, ahead, shape, out);
      }
    });
  }
}

// Masked scores of all rows against [range.low, range.high); scores: [row][SCORE_STRIDE].
template <bool IS_DIRECT>
void int4_scores(const HeadCache& cache, const Int4Shape& shape, const QueryRows& rows, const SegmentRange& range, const Int4Queries& q,
                 VAhead v_ahead, float* scores) {
  const int64_t end = (range.high + LANES - 1) / LANES;
  for (int64_t chunk = range.low / LANES; chunk < end; chunk += CHUNK_SUBS) {
    for_row_tiles(rows, chunk, smaller(chunk + CHUNK_SUBS, end), [&](int64_t row, int64_t count, int64_t first, int64_t last) {
      float* out = scores + row * SCORE_STRIDE + (first * LANES - range.start);
      int4_tile_scores<IS_DIRECT>(cache, shape, q.from_row(row, shape), count, first, last, end, v_ahead, out);
      mask_tile(rows, row, count, first, last, out);
    });
  }
}

// Scales, zero points and second-centre marks (1 or 0) of a segment's tokens, side by side.
struct Int4Tokens {
  float* scales;   // [groups][SEGMENT]
  float* zeros;    // [groups][SEGMENT]
  float* is_sink;  // [SEGMENT]

  static INLINE int64_t floats(const Int4Shape& shape) { return (2 * shape.num_groups + 1) * SEGMENT; }
  INLINE Int4Tokens(float* memory, const HeadCache& cache, const Int4Shape& shape, const SegmentRange& range)
      : scales(memory), zeros(memory + shape.num_groups * SEGMENT), is_sink(memory + 2 * shape.num_groups * SEGMENT) {
    for (int64_t sub = range.low / LANES; sub * LANES < range.high; ++sub) {
      const Int4Metadata found = Int4V(cache, shape, sub).metadata;
      const int64_t at = sub * LANES - range.start;
      for (int64_t g = 0; g < shape.num_groups; ++g) {
        store(scales + g * SEGMENT + at, found.scale(g), Whole{});
        store(zeros + g * SEGMENT + at, found.zero(g), Whole{});
      }
      store(is_sink + at, select(found.is_sink(), splat(1.0f), kvasir::KVASIR_ISA::zeros()), Whole{});
    }
  }
};

// P of a block as codes, per group, and what each row adds to every channel of a group.
struct Int4Weights {
  CodedWeights* coded;  // [groups]
  float* added;         // [groups][rows]
  float* sink_sums;     // [rows]

  static INLINE int64_t floats(int64_t rows, const Int4Shape& shape) {
    return shape.num_groups * (CodedWeights::floats(rows) + rows + int64_t(sizeof(CodedWeights) / 4)) + rows;
  }
  INLINE Int4Weights(float* memory, int64_t rows, const Int4Shape& shape) {
    coded = (CodedWeights*)memory;
    memory += shape.num_groups * int64_t(sizeof(CodedWeights) / 4);
    for (int64_t g = 0; g < shape.num_groups; ++g, memory += CodedWeights::floats(rows)) coded[g] = CodedWeights::at(memory, rows);
    added = memory;
    sink_sums = memory + shape.num_groups * rows;
  }
};

// Codes of sixteen weights with V's scales folded in; returns what the codes leave of them.  A weight of zero touches
// nothing, whatever the scale is.
INLINE F16 code_weights_exactly(F16 weight, F16 v_scales, int8_t* codes, float* scale) {
  const F16 folded = select(weight > zeros(), weight * v_scales, zeros());
  const int32_t bits = max_lanes(as_int(folded) & splat(0x7fffffff));
  float largest;
  memcpy(&largest, &bits, 4);
  if (bits >= 0x7f800000 || largest < 0x1p-116f) {
    memset(codes, 0, LANES);
    *scale = bits >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
    return zeros();
  }
  *scale = largest * (1.0f / 127.0f);
  const F16 rounded = round_even(folded * splat(127.0f / largest));
  store_codes(codes, rounded);
  return folded - rounded * splat(*scale);
}

// Scores to coded weights, row by row; a row that sees nothing of the segment gets sum 0.
inline void int4_softmax(const QueryRows& rows, const SegmentRange& range, const Int4Shape& shape, float* scores, const float* factors, const Int4Tokens& tokens,
                         const Int4Weights& weights, float* largest, float* sum) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const TileRange tile(rows, range, row);
    const int64_t at = tile.first - range.start / LANES, count = tile.last - tile.first;
    float* w = scores + row * SCORE_STRIDE + at * LANES;
    const bool is_blind = larger(range.low, rows.low(row)) >= smaller(range.high, rows.high(row));
    if (is_blind) {
      if (count > 0) memset(w, 0, count * LANES * sizeof(float));
      largest[row] = -__builtin_inff();
      sum[row] = 0.0f;
    } else {
      softmax_row(w, factors ? factors[row] : 1.0f, count, largest + row, sum + row);
    }
    F16 sink = zeros();
    for (int64_t n = 0; n < count; ++n) {
      const F16 weight = load(w + n * LANES, Whole{});
      sink = fma(weight, load(tokens.is_sink + (at + n) * LANES, Whole{}), sink);
    }
    weights.sink_sums[row] = sum_lanes(sink);
    for (int64_t g = 0; g < shape.num_groups; ++g) {
      int8_t* codes = weights.coded[g].codes + row * SCORE_STRIDE + at * LANES;
      float* code_scales = weights.coded[g].scales + row * SUBS + at;
      F16 added = zeros();
      for (int64_t n = 0; n < count; ++n) {
        const F16 weight = load(w + n * LANES, Whole{});
        const int64_t token = g * SEGMENT + (at + n) * LANES;
        const F16 left = code_weights_exactly(weight, load(tokens.scales + token, Whole{}), codes + n * LANES, code_scales + n);
        const F16 zero = select(weight > zeros(), load(tokens.zeros + token, Whole{}), zeros());
        added = fma(left, splat(MIDDLE_CODE), fma(weight, zero, added));
      }
      weights.added[g * rows.count + row] = sum_lanes(added);
    }
  }
}

// o[r][32 channels] += codes . V over sub-blocks [first, last), one after the other.
template <int R, bool IS_DIRECT>
INLINE void int4_sum_tile(const HeadCache& cache, const Int4Shape& shape, const CodedWeights& weights, int64_t start, int64_t first, int64_t last,
                          int64_t end, int64_t channel, float* o) {
  F16 sum[R][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) sum[r][n] = load(o + r * shape.dim + channel + n * LANES, Whole{});
  }
  for (int64_t sub = first; sub < last; ++sub) {
    const uint8_t* v = Int4V(cache, shape, sub).at + channel * 2;
    const char* ahead = nullptr;
    if (IS_DIRECT) ahead = (const char*)Int4V(cache, shape, smaller(sub + AHEAD, end - 1)).at + channel * 2;
    const int8_t* codes = weights.codes + (sub - start) * LANES;
    I16 product[R][2];
#pragma GCC unroll 4
    for (int four = 0; four < 4; ++four) {
      if (IS_DIRECT) __builtin_prefetch(ahead + four * shape.dim * 2);
      const Nibbles both = load_nibbles(v + four * shape.dim * 2);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const B16 weight = splat_bytes(codes + r * SCORE_STRIDE + four * 4);
        product[r][0] = dot(four ? product[r][0] : splat(0), both.low, weight);
        product[r][1] = dot(four ? product[r][1] : splat(0), both.high, weight);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F16 scale = splat(weights.scales[r * SUBS + (sub - start)]);
#pragma GCC unroll 2
      for (int n = 0; n < 2; ++n) sum[r][n] = fma(scale, to_float(product[r][n]), sum[r][n]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) store(o + r * shape.dim + channel + n * LANES, sum[r][n], Whole{});
  }
}

// Weighted sums of V, rotated as V is, for all rows; o: [row][D], overwritten.  ``sink``: the head's second centre,
// rotated; may be null.
template <bool IS_DIRECT>
void int4_values(const HeadCache& cache, const Int4Shape& shape, const QueryRows& rows, const SegmentRange& range, const Int4Weights& weights,
                 const float* sink, float* o) {
  constexpr int64_t TOGETHER = IS_DIRECT ? SEGMENT / LANES : CHUNK_SUBS;
  const int64_t end = (range.high + LANES - 1) / LANES, start = range.start / LANES;
  memset(o, 0, rows.count * shape.dim * sizeof(float));
  for (int64_t chunk = range.low / LANES; chunk < end; chunk += TOGETHER) {
    for_row_tiles(rows, chunk, smaller(chunk + TOGETHER, end), [&](int64_t tile, int64_t count, int64_t first, int64_t last) {
      for (int64_t row = tile; row < tile + count; row += SUM4_ROWS) {
        with_rows<SUM4_ROWS>(smaller(SUM4_ROWS, tile + count - row), [&](auto rows_now) {
          for (int64_t channel = 0; channel < shape.dim; channel += 2 * LANES) {
            const CodedWeights& all = weights.coded[channel / shape.group];
            const CodedWeights part{all.codes + row * SCORE_STRIDE, all.scales + row * SUBS};
            int4_sum_tile<decltype(rows_now)::COUNT, IS_DIRECT>(cache, shape, part, start, first, last, end, channel, o + row * shape.dim);
          }
        });
      }
    });
  }
  for (int64_t row = 0; row < rows.count; ++row) {
    for (int64_t d = 0; d < shape.dim; d += LANES) {
      float* at = o + row * shape.dim + d;
      F16 sum = load(at, Whole{}) + splat(weights.added[d / shape.group * rows.count + row]);
      if (sink) sum = fma(splat(weights.sink_sums[row]), load(sink + d, Whole{}), sum);
      store(at, sum, Whole{});
    }
  }
}

}  // namespace kvasir::KVASIR_ISA
