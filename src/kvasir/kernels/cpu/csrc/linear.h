// Products of quantised rows and weights: bytes times bytes, summed in 32 bits, exact in any order.
//
// Weights are packed once: [N / 16][K / 4][16][4] of code + 128, so that a step over four input channels reads sixteen
// output channels from neighbouring bytes, and a call reads the weights of its channels from front to back.
#pragma once

#include "dot.h"

namespace kvasir::KVASIR_ISA {

// Rows and sixteens of output channels whose sums registers hold at a time.
#if defined(__AVX512F__)
constexpr int SUM_ROWS_AT_ONCE = 8, SIXTEENS_AT_ONCE = 3;
#else
constexpr int SUM_ROWS_AT_ONCE = 4, SIXTEENS_AT_ONCE = 1;
#endif
static_assert(LINEAR_GRAIN % SIXTEENS_AT_ONCE == 0);

INLINE int64_t num_steps(int64_t width) { return (width + 3) / 4; }

// Item: sixteen output channels.
inline void pack_codes(const PackArgs& a, int64_t begin, int64_t end, Scratch&) {
  const int64_t steps = num_steps(a.width);
  for (int64_t n = begin; n < end; ++n) {
    for (int64_t lane = 0; lane < LANES; ++lane) {
      const int64_t channel = n * LANES + lane;
      for (int64_t step = 0; step < steps; ++step) {
        uint32_t four = 0;
        const int64_t rest = channel < a.num_columns ? a.width - step * 4 : 0;
        if (rest > 0) memcpy(&four, a.codes + channel * a.width + step * 4, rest < 4 ? rest : 4);
        four ^= 0x80808080u;
        memcpy(a.packed + ((n * steps + step) * LANES + lane) * 4, &four, 4);
      }
    }
  }
}

// What the sum of a row starts with: makes up for the 128 that some machines' instruction takes along.
inline void row_starts(const LinearArgs& a, int32_t* starts) {
  for (int64_t t = 0; t < a.num_rows; ++t) {
    int32_t sum = 0;
    if (STORED_OFFSET != 0) {
      for (int64_t k = 0; k < a.width; ++k) sum += a.rows[t * a.row_stride + k];
    }
    starts[t] = -STORED_OFFSET * sum;
  }
}

template <int R, int C>
struct Sums {
  I16 at[R][C];
};

// Codes as ``dot_signed`` wants its first side.
INLINE B16 as_stored(B16 codes) {
#if defined(KVASIR_HAS_DPBUSD)
  EACH_PART codes.part[i] = codes.part[i] ^ (int8_t)-128;
#endif
  return codes;
}

// The sums of R rows from ``row`` and C sixteens of channels from ``sixteen``.
template <int R, int C>
INLINE Sums<R, C> sum_tile(const LinearArgs& a, int64_t row, int64_t sixteen) {
  const int64_t steps = num_steps(a.width), stride = steps * 4 * LANES;
  const uint8_t* weights = a.weights + sixteen * stride;
  const int8_t* rows = a.rows + row * a.row_stride;
  Sums<R, C> sums;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums.at[r][c] = splat(a.starts[row + r]);
  }
  for (int64_t step = 0; step < steps; ++step) {
    B16 columns[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) columns[c] = as_signed(load_bytes(weights + c * stride + step * 4 * LANES));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const B16 four = splat_bytes(rows + r * a.row_stride + step * 4);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sums.at[r][c] = dot_signed(sums.at[r][c], columns[c], four);
    }
  }
  return sums;
}

// Calls body(Sums, first row, first sixteen) for all rows and sixteens [begin, end): sixteens outside, so that their
// weights are read from memory once.
template <class Body, int C>
INLINE void each_tile_of(const LinearArgs& a, int64_t sixteen, const Body& body) {
  // Equal tiles: 9 rows are 5 and 4, not 8 and 1.
  const int64_t tiles = (a.num_rows + SUM_ROWS_AT_ONCE - 1) / SUM_ROWS_AT_ONCE;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t row = a.num_rows * i / tiles, count = a.num_rows * (i + 1) / tiles - row;
    switch (count) {
      case 1: body(sum_tile<1, C>(a, row, sixteen), row, sixteen); break;
      case 2: body(sum_tile<2, C>(a, row, sixteen), row, sixteen); break;
      case 3: body(sum_tile<3, C>(a, row, sixteen), row, sixteen); break;
      case 4: body(sum_tile<4, C>(a, row, sixteen), row, sixteen); break;
#if defined(__AVX512F__)
      case 5: body(sum_tile<5, C>(a, row, sixteen), row, sixteen); break;
      case 6: body(sum_tile<6, C>(a, row, sixteen), row, sixteen); break;
      case 7: body(sum_tile<7, C>(a, row, sixteen), row, sixteen); break;
      case 8: body(sum_tile<8, C>(a, row, sixteen), row, sixteen); break;
#endif
    }
  }
}
template <class Body>
INLINE void each_tile(const LinearArgs& a, int64_t begin, int64_t end, const Body& body) {
  int64_t n = begin;
  for (; n + SIXTEENS_AT_ONCE <= end; n += SIXTEENS_AT_ONCE) each_tile_of<Body, SIXTEENS_AT_ONCE>(a, n, body);
  for (; n < end; ++n) each_tile_of<Body, 1>(a, n, body);
}

INLINE void store_sums(int32_t* p, I16 v, int64_t count) {
  if (count >= LANES) {
    memcpy(p, &v, sizeof(v));
  } else {
    int32_t buffer[LANES];
    memcpy(buffer, &v, sizeof(v));
    memcpy(p, buffer, count * sizeof(int32_t));
  }
}

struct StoreSums {
  const LinearArgs& a;
  template <int R, int C>
  INLINE void operator()(const Sums<R, C>& sums, int64_t row, int64_t sixteen) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const int64_t column = (sixteen + c) * LANES;
        store_sums(a.out + (row + r) * a.num_columns + column, sums.at[r][c], a.num_columns - column);
      }
    }
  }
};

// Item: sixteen output channels.
inline void multiply(const LinearArgs& a, int64_t begin, int64_t end, Scratch&) {
  each_tile(a, begin, end, StoreSums{a});
}

// Per lane the largest value of a row so far, its channel, and whether a value was NaN.
struct LaneBest {
  F16 value;
  I16 channel, is_nan;
};

struct KeepBest {
  const BestArgs& a;
  LaneBest* bests;
  template <int R, int C>
  INLINE void operator()(const Sums<R, C>& sums, int64_t row, int64_t sixteen) const {
    const int64_t column = sixteen * LANES, rest = a.linear.num_columns - column;
    if (rest >= C * LANES) {
      keep(sums, row, column, [](int64_t) { return Whole{}; });
    } else {
      keep(sums, row, column, [&](int64_t c) {
        const int64_t count = rest - c * LANES;
        return First{int(count < LANES ? count : LANES)};
      });
    }
  }

 private:
  static INLINE I16 inside(Whole) { return splat(-1); }
  static INLINE I16 inside(First first) { return lane_numbers() < splat(int32_t(first.count)); }

  template <int R, int C, class PartOf>
  INLINE void keep(const Sums<R, C>& sums, int64_t row, int64_t column, PartOf part_of) const {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const auto part = part_of(c);
      const I16 channels = lane_numbers() + splat(int32_t(column + c * LANES)), is_inside = inside(part);
      const F16 col_scale = load(a.col_scale + column + c * LANES, part);
      const F16 bias = a.bias ? load(a.bias + column + c * LANES, part) : zeros();
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        LaneBest& best = bests[row + r];
        // Scales and bias in the order of the other epilogues: the same bits as a stored logit.
        F16 value = to_float(sums.at[r][c]) * splat(a.row_scale[row + r]) * col_scale;
        if (a.bias) value = value + bias;
        best.is_nan = max(best.is_nan, (as_int(value) & splat(0x7fffffff)) & is_inside);
        const I16 is_better = (value > best.value) & is_inside;
        best.value = select(is_better, value, best.value);
        best.channel = as_int(select(is_better, as_float(channels), as_float(best.channel)));
      }
    }
  }
};

// Item: sixteen output channels.  Writes, for every row, what the channels of this piece have.
inline void multiply_best(const BestArgs& a, int64_t begin, int64_t end, Scratch& scratch) {
  const int64_t rows = a.linear.num_rows;
  LaneBest* bests = (LaneBest*)scratch.floats(0, rows * int64_t(sizeof(LaneBest) / sizeof(float)));
  const LaneBest none = {splat(-__builtin_inff()), lane_numbers() + splat(int32_t(begin * LANES)), splat(0)};
  for (int64_t t = 0; t < rows; ++t) bests[t] = none;
  each_tile(a.linear, begin, end, KeepBest{a, bests});
  for (int64_t t = 0; t < rows; ++t) {
    float values[LANES];
    int32_t channels[LANES];
    memcpy(values, &bests[t].value, sizeof(values));
    memcpy(channels, &bests[t].channel, sizeof(channels));
    Best best = {values[0], channels[0]};
    for (int i = 1; i < LANES; ++i) {
      const bool is_first = values[i] == best.value && channels[i] < best.channel;
      if (values[i] > best.value || is_first) best = {values[i], channels[i]};
    }
    if (max_lanes(bests[t].is_nan) > 0x7f800000) best.value = __builtin_nanf("");
    a.bests[begin / a.grain * rows + t] = best;
  }
}

INLINE int32_t sum_lanes(I16 v) {
  int32_t sum = 0;
  int32_t lanes[LANES];
  memcpy(lanes, &v, sizeof(v));
  for (int i = 0; i < LANES; ++i) sum += lanes[i];
  return sum;
}

// For few rows and weights as they came, [N, K]: sixty-four input channels of one output channel at a time.
template <int R>
INLINE void multiply_channel(const LinearArgs& a, int64_t row, int64_t n) {
  constexpr int64_t BYTES = 4 * LANES;
  const int8_t* channel = (const int8_t*)a.weights + n * a.width;
  I16 sums[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) sums[r] = splat(0);
  const auto add = [&](B16 codes, auto bytes_of) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sums[r] = dot_signed(sums[r], codes, bytes_of(r));
  };
  const int8_t* rows = a.rows + row * a.row_stride;
  int64_t k = 0;
  for (; k + BYTES <= a.width; k += BYTES) {
    add(as_stored(load_bytes(channel + k)),
        [&](int r) __attribute__((always_inline)) { return load_bytes(rows + r * a.row_stride + k); });
  }
  if (k < a.width) {
    int8_t codes[BYTES] = {}, bytes[R][BYTES] = {};
    memcpy(codes, channel + k, a.width - k);
    for (int r = 0; r < R; ++r) memcpy(bytes[r], rows + r * a.row_stride + k, a.width - k);
    add(as_stored(load_bytes(codes)), [&](int r) __attribute__((always_inline)) { return load_bytes(bytes[r]); });
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) a.out[(row + r) * a.num_columns + n] = a.starts[row + r] + sum_lanes(sums[r]);
}

// Item: sixteen output channels.
inline void multiply_unpacked(const LinearArgs& a, int64_t begin, int64_t end, Scratch&) {
  for (int64_t n = begin * LANES; n < end * LANES && n < a.num_columns; ++n) {
    int64_t row = 0;
    for (; row + 4 <= a.num_rows; row += 4) multiply_channel<4>(a, row, n);
    for (; row + 2 <= a.num_rows; row += 2) multiply_channel<2>(a, row, n);
    if (row < a.num_rows) multiply_channel<1>(a, row, n);
  }
}

}  // namespace kvasir::KVASIR_ISA
