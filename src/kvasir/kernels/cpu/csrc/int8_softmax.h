// From scores to P in seven bits: one scale per row and sixteen tokens, with V's token scales folded in before.
//
// Codes and sums come out of one pass over a row, because nothing in it waits for another exponential: weights of a
// sub-block are taken relative to its own largest score, and V's scales are shares of their own largest.  The scale of
// the codes is the product of both, up to a bit more than the largest code needs.
#pragma once

#include "prefill.h"
#include "rows.h"

namespace kvasir::KVASIR_ISA {

constexpr int64_t SUBS = SEGMENT / LANES;

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
// The largest lane of each of four vectors; ``larger_of`` takes the larger of each lane of two of them.
template <class Larger>
INLINE void largest_of_four(const __m512i (&v)[4], float* out, Larger larger_of) {
  const __m512i ab = larger_of(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
  const __m512i cd = larger_of(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
  __m512i all = larger_of(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  all = larger_of(all, _mm512_shuffle_i64x2(all, all, 0x4e));
  all = larger_of(all, _mm512_shuffle_i64x2(all, all, 0xb1));
  _mm_storeu_ps(out, _mm_castsi128_ps(_mm512_castsi512_si128(all)));
}
#endif

// The largest of each of ``num_subs`` times sixteen numbers.
INLINE void largest_of_each(const float* numbers, int64_t num_subs, float* largest) {
  int64_t i = 0;
#if defined(__AVX512F__)
  const auto larger_of = [](__m512i a, __m512i b) {
    return _mm512_castps_si512(_mm512_max_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)));
  };
  for (; i + 4 <= num_subs; i += 4) {
    __m512i v[4];
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) v[n] = _mm512_loadu_si512(numbers + (i + n) * LANES);
    largest_of_four(v, largest + i, larger_of);
  }
#endif
  for (; i < num_subs; ++i) largest[i] = max_lanes(load(numbers + i * LANES, Whole{}));
}

// The same of what is not negative; NaN counts as the largest.
INLINE void largest_scales(const float* scales, int64_t num_subs, float* largest) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 4 <= num_subs; i += 4) {
    __m512i v[4];
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) v[n] = _mm512_loadu_si512(scales + (i + n) * LANES);
    largest_of_four(v, largest + i, [](__m512i a, __m512i b) { return _mm512_max_epu32(a, b); });
  }
#endif
  for (; i < num_subs; ++i) {
    const int32_t bits = max_lanes(as_int(load(scales + i * LANES, Whole{})));
    memcpy(largest + i, &bits, 4);
  }
}

INLINE float codes_of(float top) { return top < SMALLEST_CODED ? 0.0f : 127.0f / top; }

// V's token scales of a segment, made ready once for all rows: ``shares`` of the largest of their sub-block, times 127,
// and that largest.  Both are of whole sub-blocks, so they are for rows that see all sixteen tokens.
struct VScales {
  float *own, *shares, *tops;

  static constexpr int64_t FLOATS = 2 * SEGMENT + SUBS;
  static INLINE VScales at(float* memory) { return {memory, memory + SEGMENT, memory + 2 * SEGMENT}; }
  // ``own`` of sub-blocks [first, last) of the segment is set.
  INLINE void make_ready(int64_t first, int64_t last) const {
    largest_scales(own + first * LANES, last - first, tops + first);
    for (int64_t i = first; i < last; ++i) {
      store(shares + i * LANES, load(own + i * LANES, Whole{}) * splat(codes_of(tops[i])), Whole{});
    }
  }
};

// What one row sees of a segment: tokens [low, high), sub-blocks [first, last) with one of them, [whole, whole_last) with
// sixteen; all counted from the segment's start.
struct RowSpan {
  int64_t low, high, first, last, whole, whole_last;

  INLINE RowSpan(const QueryRows& rows, const SegmentRange& range, int64_t row)
      : low(larger(range.low, rows.low(row)) - range.start), high(smaller(range.high, rows.high(row)) - range.start) {
    first = low / LANES;
    last = (high + LANES - 1) / LANES;
    whole = (low + LANES - 1) / LANES;
    whole_last = larger(whole, high / LANES);
  }
  INLINE bool is_empty() const { return low >= high; }
};

// One row's scores of a segment on their way to codes.  A sub-block's weights are first taken relative to its own largest
// score, which is known before any exponential is, so that codes and sums come out of one pass.
struct RowWeights {
  F16 rise, total;
  alignas(64) float falls[SUBS];    // what makes the exponent of a sub-block's largest score 0
  alignas(64) float weights[SUBS];  // of that score, relative to the row's largest
  alignas(64) float tops[SUBS];     // of V's scales among the tokens that are seen; anything where there are none

  // The largest score of each sub-block, kept in ``falls`` until ``begin``.
  INLINE void find_peaks(const float* scores, const RowSpan& span) {
    for (int64_t i = 0; i < SUBS; i += LANES) store(falls + i, splat(-__builtin_inff()), Whole{});
    largest_of_each(scores + span.first * LANES, span.last - span.first, falls + span.first);
  }
  // Returns the row's largest score.
  INLINE float begin(float factor, const VScales& v) {
    F16 top = splat(-__builtin_inff());
    for (int64_t i = 0; i < SUBS; i += LANES) top = max(top, load(falls + i, Whole{}));
    const float largest = max_lanes(top) * factor;
    rise = splat(factor);
    total = zeros();
    for (int64_t i = 0; i < SUBS; i += LANES) {
      const F16 peak = load(falls + i, Whole{}) * rise;
      store(weights + i, exp2_nonpositive(peak - splat(largest)), Whole{});
      store(falls + i, select(peak > splat(-__builtin_inff()), zeros() - peak, zeros()), Whole{});
      store(tops + i, load(v.tops + i, Whole{}), Whole{});
    }
    return largest;
  }
  INLINE F16 next(const float* scores, int64_t sub) {
    const F16 weight = exp2_coarse(fma(load(scores + sub * LANES, Whole{}), rise, splat(falls[sub])));
    total = fma(weight, splat(weights[sub]), total);
    return weight;
  }
  INLINE void code(const float* scores, const VScales& v, const RowSpan& span, int8_t* codes) {
    if (span.first < span.whole) code_part(scores, v, span, span.first, codes);
    code_whole(scores, v, span.whole, span.whole_last, codes);
    if (span.whole_last < span.last) code_part(scores, v, span, span.last - 1, codes);
  }
  // A sub-block of which the row sees some tokens only.
  INLINE void code_part(const float* scores, const VScales& v, const RowSpan& span, int64_t sub, int8_t* codes) {
    const F16 weight = next(scores, sub);
    const I16 lanes = lane_numbers();
    const I16 is_seen = (lanes >= splat(int32_t(span.low - sub * LANES))) & (lanes < splat(int32_t(span.high - sub * LANES)));
    const F16 own = select(is_seen, load(v.own + sub * LANES, Whole{}), zeros());
    const int32_t bits = max_lanes(as_int(own));
    memcpy(tops + sub, &bits, 4);
    store_codes(codes + sub * LANES, weight * (own * splat(codes_of(tops[sub]))));
  }
  INLINE void code_whole(const float* scores, const VScales& v, int64_t from, int64_t to, int8_t* codes) {
    int64_t i = from;
#if defined(__AVX512F__)
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (; i + 4 <= to; i += 4) {
      __m512i rounded[4];
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        const F16 coded = next(scores, i + n) * load(v.shares + (i + n) * LANES, Whole{});
        rounded[n] = _mm512_cvtps_epi32((__m512)coded.part[0]);
      }
      const __m512i packed = _mm512_packs_epi16(_mm512_packs_epi32(rounded[0], rounded[1]),
                                                _mm512_packs_epi32(rounded[2], rounded[3]));
      _mm512_storeu_si512(codes + i * LANES, _mm512_permutexvar_epi32(order, packed));
    }
#endif
    for (; i < to; ++i) {
      store_codes(codes + i * LANES, next(scores, i) * load(v.shares + i * LANES, Whole{}));
    }
  }
  // ``scales``: of all sub-blocks of the segment; 0 where nothing is seen.
  INLINE void end(float* scales, float* sum) const {
    for (int64_t i = 0; i < SUBS; i += LANES) {
      const F16 weight = load(weights + i, Whole{}), top = weight * load(tops + i, Whole{});
      const F16 scale = select(top < splat(SMALLEST_CODED), zeros(), top * splat(1.0f / 127.0f));
      store(scales + i, select(weight > zeros(), scale, zeros()), Whole{});
    }
    *sum = sum_lanes(total);
  }
};

// Scores to coded weights; a row that sees nothing of the segment gets sum 0.  A visible token whose scale is NaN makes its
// sub-block NaN; what a row does not see cannot touch it.
inline void coded_softmax(const QueryRows& rows, const SegmentRange& range, const float* scores, const float* factors,
                          const VScales& v, const CodedWeights& weights, float* largest, float* sum) {
  constexpr int64_t TOGETHER = 8;  // what a row starts with is a long chain: several rows' chains are left to overlap
  RowWeights work[TOGETHER];
  for (int64_t begin = 0; begin < rows.count; begin += TOGETHER) {
    const int64_t end = smaller(begin + TOGETHER, rows.count);
    for (int64_t row = begin; row < end; ++row) {
      const RowSpan span(rows, range, row);
      if (!span.is_empty()) work[row - begin].find_peaks(scores + row * SCORE_STRIDE, span);
    }
    for (int64_t row = begin; row < end; ++row) {
      const bool is_empty = RowSpan(rows, range, row).is_empty();
      largest[row] = is_empty ? -__builtin_inff() : work[row - begin].begin(factors ? factors[row] : 1.0f, v);
    }
    for (int64_t row = begin; row < end; ++row) {
      const TileRange tile(rows, range, row);
      const RowSpan span(rows, range, row);
      const int64_t first = tile.first - range.start / LANES, last = tile.last - range.start / LANES;
      int8_t* codes = weights.codes + row * SCORE_STRIDE;
      for (int64_t i = first; i < (span.is_empty() ? last : span.first); ++i) store_codes(codes + i * LANES, zeros());
      if (span.is_empty()) continue;
      for (int64_t i = span.last; i < last; ++i) store_codes(codes + i * LANES, zeros());
      work[row - begin].code(scores + row * SCORE_STRIDE, v, span, codes);
    }
    for (int64_t row = begin; row < end; ++row) {
      float* scales = weights.scales + row * SUBS;
      if (!RowSpan(rows, range, row).is_empty()) {
        work[row - begin].end(scales, sum + row);
        continue;
      }
      for (int64_t i = 0; i < SUBS; i += LANES) store(scales + i, zeros(), Whole{});
      sum[row] = 0.0f;
    }
  }
}

}  // namespace kvasir::KVASIR_ISA
