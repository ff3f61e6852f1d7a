// Rows to int4, sixteen tokens of one head side by side in the lanes: each lane is its token's alone, so a token's codes
// do not depend on its neighbours.  kernels/group_quantiser.py does the same steps in the same order.
#pragma once

#include "int4_tiles.h"
#include "rows.h"

namespace kvasir::KVASIR_ISA {

// A head's constants for K or for V; null for what there is not.
struct HeadBasis {
  const float* center;
  const float* sink;
  const float* feedback;
};

// [D][16] vectors of a batch of rows.
struct LaneRows {
  float* x;        // the rows, then what is left of them
  float* other;    // work
  int32_t* codes;

  static INLINE int64_t floats(int64_t dim) { return 3 * dim * LANES; }
  INLINE LaneRows(float* memory, int64_t dim)
      : x(memory), other(memory + dim * LANES), codes((int32_t*)(memory + 2 * dim * LANES)) {}
};

INLINE F16 lanes_at(const float* x, int64_t channel) { return load(x + channel * LANES, Whole{}); }

// Takes the better of two centres off ``rows.x``; all ones in the lanes that took the second.
INLINE I16 take_center(const LaneRows& rows, const HeadBasis& basis, int64_t dim) {
  const auto center = [&](int64_t d) { return basis.center ? lanes_at(rows.x, d) - splat(basis.center[d]) : lanes_at(rows.x, d); };
  I16 is_sink = splat(0);
  if (basis.sink) {
    F16 usual = zeros(), other = zeros();
    for (int64_t d = 0; d < dim; ++d) {
      const F16 a = center(d), b = lanes_at(rows.x, d) - splat(basis.sink[d]);
      usual = fma(a, a, usual);
      other = fma(b, b, other);
    }
    is_sink = other < usual;
  }
  for (int64_t d = 0; d < dim; ++d) {
    F16 left = center(d);
    if (basis.sink) left = select(is_sink, lanes_at(rows.x, d) - splat(basis.sink[d]), left);
    store(rows.x + d * LANES, left, Whole{});
  }
  return is_sink;
}

// Block Hadamard over the channels: a butterfly is a sum and a difference of whole vectors.
INLINE void rotate_lanes(float* x, int64_t dim, int64_t size) {
  for (int64_t stride = 1; stride < size; stride *= 2) {
    for (int64_t base = 0; base < dim; base += 2 * stride) {
      for (int64_t d = base; d < base + stride; ++d) {
        const F16 a = lanes_at(x, d), b = lanes_at(x, d + stride);
        store(x + d * LANES, a + b, Whole{});
        store(x + (d + stride) * LANES, a - b, Whole{});
      }
    }
  }
  const F16 norm = splat(1.0f / __builtin_sqrtf((float)size));
  for (int64_t d = 0; d < dim; ++d) store(x + d * LANES, lanes_at(x, d) * norm, Whole{});
}

// Scale and zero point of one group of sixteen tokens, as fp32 values that bf16 holds.
struct GroupScale {
  F16 scale, zero, inverse;
  I16 is_bad;
};
INLINE GroupScale group_scale(const float* x, int64_t group) {
  F16 low = lanes_at(x, 0), high = low;
  I16 largest = as_int(low) & splat(0x7fffffff);
  for (int64_t d = 1; d < group; ++d) {
    const F16 v = lanes_at(x, d);
    low = select(v < low, v, low);
    high = select(v > high, v, high);
    largest = max(largest, as_int(v) & splat(0x7fffffff));
  }
  const I16 mask = splat(int32_t(0xffff0000));
  const I16 bits = as_int(low);
  GroupScale g;
  g.zero = as_float((bits + ((bits < splat(0)) & splat(0xffff))) & mask);  // down
  const F16 raw = (high - g.zero) / splat(15.0f);
  g.is_bad = max(largest, as_int(raw) & splat(0x7fffffff)) >= splat(0x7f800000);
  g.scale = as_float((as_int(raw) + splat(0xffff)) & mask);  // up
  const I16 is_flat = g.scale < splat(0x1p-116f);
  g.inverse = select(is_flat, zeros(), splat(1.0f) / g.scale);
  g.scale = select(is_flat, zeros(), g.scale);
  return g;
}

INLINE F16 code_of(F16 wanted, const GroupScale& g) {
  const F16 x = (wanted - g.zero) * g.inverse;
  return round_even(select(x > splat(15.0f), splat(15.0f), select(x > zeros(), x, zeros())));
}

// Codes of all channels of ``rows.x``; its values are used up.
INLINE void code_rows(const LaneRows& rows, const GroupScale* scales, int64_t dim, int64_t group, const float* feedback) {
  if (feedback) memcpy(rows.other, rows.x, dim * LANES * sizeof(float));
  for (int64_t d = dim - 1; d >= 0; --d) {
    const GroupScale& g = scales[d / group];
    const F16 wanted = lanes_at(rows.x, d), code = code_of(wanted, g);
    store(rows.codes + d * LANES, select(g.is_bad, splat(0), truncate(code)), Whole{});
    if (!feedback) continue;
    const F16 error = (code * g.scale + g.zero) - lanes_at(rows.other, d);
    const float* shares = feedback + d * dim;
    for (int64_t i = 0; i < d; ++i) store(rows.x + i * LANES, lanes_at(rows.x, i) - error * splat(shares[i]), Whole{});
  }
}

constexpr int64_t MAX_INT4_GROUPS = 16;

// The rows of one batch, coded: per group the bits of scale and zero point, per channel the codes.
struct Int4Rows {
  LaneRows lanes;
  int32_t scales[MAX_INT4_GROUPS][LANES], zeros[MAX_INT4_GROUPS][LANES];

  // ``rows``: [count][row_stride] floats, each one token's row.
  INLINE Int4Rows(float* memory, const float* rows, int64_t row_stride, int64_t count, const Int4Shape& shape, const HeadBasis& basis)
      : lanes(memory, shape.dim) {
    for (int64_t d = 0; d < shape.dim; ++d) {
      for (int64_t t = 0; t < LANES; ++t) lanes.x[d * LANES + t] = t < count ? rows[t * row_stride + d] : 0.0f;
    }
    const I16 is_sink = take_center(lanes, basis, shape.dim);
    rotate_lanes(lanes.x, shape.dim, shape.rotation());
    GroupScale groups[MAX_INT4_GROUPS];
    for (int64_t g = 0; g < shape.num_groups; ++g) {
      const GroupScale scale = groups[g] = group_scale(lanes.x + g * shape.group * LANES, shape.group);
      const I16 nan = splat(0x7fc00000);
      I16 bits = select(scale.is_bad, nan, as_int(scale.scale));
      if (g == 0) bits = bits | (is_sink & splat(int32_t(0x80000000)));
      store(scales[g], bits, Whole{});
      store(zeros[g], select(scale.is_bad, nan, as_int(scale.zero)), Whole{});
    }
    code_rows(lanes, groups, shape.dim, shape.group, basis.feedback);
  }

  INLINE void write_metadata(uint8_t* tile, const Int4Shape& shape, int64_t offset, int64_t t) const {
    uint16_t* at = (uint16_t*)(tile + shape.code_bytes()) + offset;
    for (int64_t g = 0; g < shape.num_groups; ++g) {
      at[g * shape.size] = uint16_t(uint32_t(scales[g][t]) >> 16);
      at[(shape.num_groups + g) * shape.size] = uint16_t(uint32_t(zeros[g][t]) >> 16);
    }
  }
  INLINE int32_t code(int64_t d, int64_t t) const { return lanes.codes[d * LANES + t]; }

  void write_k(uint8_t* tile, const Int4Shape& shape, int64_t offset, int64_t t) const {
    write_metadata(tile, shape, offset, t);
    for (int64_t i = 0; i < shape.dim / 8; ++i) {
      uint8_t* at = tile + (i * shape.size + offset) * 4;
      for (int64_t c = 0; c < 4; ++c) at[c] = uint8_t(code(8 * i + c, t) | code(8 * i + 4 + c, t) << 4);
    }
  }
  void write_v(uint8_t* tile, const Int4Shape& shape, int64_t offset, int64_t t) const {
    write_metadata(tile, shape, offset, t);
    uint8_t* at = tile + offset / 4 * shape.dim * 2 + offset % 4;
    for (int64_t m = 0; m < shape.dim / 32; ++m) {
      for (int64_t l = 0; l < LANES; ++l) {
        at[(m * LANES + l) * 4] = uint8_t(code(32 * m + l, t) | code(32 * m + 16 + l, t) << 4);
      }
    }
  }
};

}  // namespace kvasir::KVASIR_ISA
