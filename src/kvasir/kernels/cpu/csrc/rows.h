// The row kernels: everything between two matrix products that looks at one row at a time.
#pragma once

#include "exp.h"
#include "memory.h"

namespace kvasir::KVASIR_ISA {

INLINE int64_t padded(int64_t n) { return (n + LANES - 1) & ~int64_t(LANES - 1); }

// Row t of a product before its epilogue, read sixteen columns at a time as fp32.
template <bool IS_INT>
struct ProductRow {
  const void* data;
  F16 row_scale;
  const float* col_scale;
  const float* bias;

  ProductRow(const ProductView& product, int64_t t)
      : data((const char*)product.data + t * product.width * 4),
        row_scale(IS_INT ? splat(product.row_scale[t]) : zeros()),
        col_scale(product.col_scale),
        bias(product.bias) {}

  template <class Part>
  INLINE F16 at(int64_t column, Part part) const {
    F16 value;
    if constexpr (IS_INT) {
      value = to_float(load((const int32_t*)data + column, part)) * row_scale * load(col_scale + column, part);
    } else {
      value = load((const float*)data + column, part);
    }
    return bias ? value + load(bias + column, part) : value;
  }
};

// Calls body(ProductRow) with the product's own type.
template <class Body>
INLINE void with_row(const ProductView& product, int64_t t, Body body) {
  if (product.row_scale) {
    body(ProductRow<true>(product, t));
  } else {
    body(ProductRow<false>(product, t));
  }
}

// Butterflies between lanes: lane i takes part with lane i ^ S.
template <int S>
INLINE F16 butterfly(F16 v) {
  I16 upper_sign = (lane_numbers() & splat(S)) << (31 - __builtin_ctz(S));
  return swap<S>(v) + as_float(as_int(v) ^ upper_sign);
}

// In place: every block of ``size`` columns times the orthonormal Hadamard matrix.  The row's length is a multiple of
// size and its memory of sixteen lanes.
inline void rotate(float* row, int64_t length, int64_t size) {
  const F16 norm = splat(1.0f / __builtin_sqrtf((float)size));
  for (int64_t i = 0; i < length; i += LANES) {
    F16 v = load(row + i, Whole{}) * norm;
    if (size > 1) v = butterfly<1>(v);
    if (size > 2) v = butterfly<2>(v);
    if (size > 4) v = butterfly<4>(v);
    if (size > 8) v = butterfly<8>(v);
    store(row + i, v, Whole{});
  }
  int64_t stride = LANES;
  for (; stride * 2 < size; stride *= 4) {  // two stages a pass
    for (int64_t base = 0; base < length; base += 4 * stride) {
      for (int64_t i = base; i < base + stride; i += LANES) {
        F16 a = load(row + i, Whole{}), b = load(row + i + stride, Whole{});
        F16 c = load(row + i + 2 * stride, Whole{}), d = load(row + i + 3 * stride, Whole{});
        F16 ab = a + b, a_b = a - b, cd = c + d, c_d = c - d;
        store(row + i, ab + cd, Whole{});
        store(row + i + stride, a_b + c_d, Whole{});
        store(row + i + 2 * stride, ab - cd, Whole{});
        store(row + i + 3 * stride, a_b - c_d, Whole{});
      }
    }
  }
  if (stride < size) {
    for (int64_t base = 0; base < length; base += 2 * stride) {
      for (int64_t i = base; i < base + stride; i += LANES) {
        F16 a = load(row + i, Whole{}), b = load(row + i + stride, Whole{});
        store(row + i, a + b, Whole{});
        store(row + i + stride, a - b, Whole{});
      }
    }
  }
}

// Largest magnitude as bits: NaN and infinity are the largest of all.
INLINE int32_t largest_bits(const float* row, int64_t length) {
  I16 largest = splat(0);
  for (int64_t i = 0; i < length; i += LANES) {
    largest = max(largest, as_int(load(row + i, Whole{})) & splat(0x7fffffff));
  }
  return max_lanes(largest);
}

inline void quantise(const float* row, int64_t length, int8_t* codes, float* scale) {
  const int32_t bits = largest_bits(row, length);
  float largest;
  memcpy(&largest, &bits, 4);
  if (bits >= 0x7f800000 || largest < 0x1p-116f) {
    memset(codes, 0, length);
    *scale = bits >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
    return;
  }
  *scale = largest / 127.0f;
  const F16 inverse = splat(127.0f / largest);
  for_lanes(length, [&](int64_t i, auto part) {
    F16 scaled = load(row + i, Whole{}) * inverse;
    if constexpr (sizeof(part) == sizeof(Whole)) {
      store_codes(codes + i, scaled);
    } else {
      int8_t buffer[LANES];
      store_codes(buffer, scaled);
      memcpy(codes + i, buffer, part.count);
    }
  });
}

// ``row`` holds ``length`` values and zeros up to the next multiple of sixteen; it is used up.
inline void finish_row(float* row, int64_t length, int64_t t, const StyleView& style) {
  if (style.rotation) rotate(row, length, style.rotation);
  if (style.codes) {
    quantise(row, length, style.codes + t * length, style.scale + t);
  } else {
    memcpy(style.dense + t * length, row, length * sizeof(float));
  }
}

// Four running sums of squares by column, then one tree: short rows are latency-bound with one.
struct SquareSum {
  F16 sums[4] = {zeros(), zeros(), zeros(), zeros()};
  INLINE void add(int64_t column, F16 v) {
    F16& sum = sums[(column / LANES) & 3];
    sum = fma(v, v, sum);
  }
  INLINE float total() const { return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3])); }
};

// out = x / rms(x) * weight for one row.  ``out`` may be ``x``.
inline void norm_row(const float* x, float square_sum, const float* weight, float eps, int64_t length, float* out) {
  if (square_sum > 1e38f) {
    // The squares leave fp32 (or the row has a NaN or an infinity, which the same formula keeps visible).
    double sum = 0;
    for (int64_t i = 0; i < length; ++i) sum += (double)x[i] * x[i];
    const double inverse = 1.0 / __builtin_sqrt(sum / length + eps);
    for (int64_t i = 0; i < length; ++i) out[i] = (float)(x[i] * inverse * weight[i]);
    return;
  }
  const F16 inverse = splat(1.0f / __builtin_sqrtf(square_sum / length + eps));
  for_lanes(length, [&](int64_t i, auto part) {
    store(out + i, load(x + i, part) * inverse * load(weight + i, part), part);
  });
}

inline float* row_buffer(Scratch& scratch, int64_t length) {
  float* row = scratch.floats(0, padded(length));
  for (int64_t i = length; i < padded(length); ++i) row[i] = 0.0f;
  return row;
}

inline void norm_rows(const NormArgs& a, int64_t begin, int64_t end, Scratch& scratch) {
  float* row = row_buffer(scratch, a.width);
  for (int64_t t = begin; t < end; ++t) {
    const float* x = a.x + t * a.width;
    SquareSum squares;
    for_lanes(a.width, [&](int64_t i, auto part) { squares.add(i, load(x + i, part)); });
    norm_row(x, squares.total(), a.weight, a.eps, a.width, row);
    finish_row(row, a.width, t, a.style);
  }
}

inline void add_norm_rows(const NormArgs& a, int64_t begin, int64_t end, Scratch& scratch) {
  float* row = row_buffer(scratch, a.width);
  for (int64_t t = begin; t < end; ++t) {
    float* x = a.x + t * a.width;
    SquareSum squares;
    with_row(a.product, t, [&](auto product) {
      for_lanes(a.width, [&](int64_t i, auto part) {
        F16 sum = load(x + i, part) + product.at(i, part);
        store(x + i, sum, part);
        squares.add(i, sum);
      });
    });
    norm_row(x, squares.total(), a.weight, a.eps, a.width, row);
    finish_row(row, a.width, t, a.style);
  }
}

inline void add_product(const NormArgs& a, int64_t begin, int64_t end, Scratch&) {
  for (int64_t t = begin; t < end; ++t) {
    float* x = a.x + t * a.width;
    with_row(a.product, t, [&](auto product) {
      for_lanes(a.width, [&](int64_t i, auto part) { store(x + i, load(x + i, part) + product.at(i, part), part); });
    });
  }
}

inline void rotate_rows(const RowsArgs& a, int64_t begin, int64_t end, Scratch& scratch) {
  float* row = row_buffer(scratch, a.width);
  for (int64_t t = begin; t < end; ++t) {
    memcpy(row, a.x + t * a.width, a.width * sizeof(float));
    finish_row(row, a.width, t, a.style);
  }
}

inline void swiglu_rows(const RowsArgs& a, int64_t begin, int64_t end, Scratch& scratch) {
  float* row = row_buffer(scratch, a.width);
  for (int64_t t = begin; t < end; ++t) {
    with_row(a.product, t, [&](auto product) {
      for_lanes(a.width, [&](int64_t i, auto part) {
        F16 gate = product.at(i, part), up = product.at(a.width + i, part);
        F16 silu = gate / (splat(1.0f) + exp_any(zeros() - gate));
        store(row + i, silu * up, part);
      });
    });
    finish_row(row, a.width, t, a.style);
  }
}

}  // namespace kvasir::KVASIR_ISA
