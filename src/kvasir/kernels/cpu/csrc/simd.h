// Sixteen fp32 lanes, whatever the machine: one AVX-512 register, two of AVX, four of SSE or NEON.
//
// This file and everything that includes it is compiled once per instruction set, each time in its own namespace
// (KVASIR_ISA), so that the linker can never hand code of one set to another.  For the same reason nothing here may
// use templates or inline functions of the standard library.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace kvasir::KVASIR_ISA {

#if defined(__AVX512F__)
constexpr int NATIVE = 16;
#elif defined(__AVX__)
constexpr int NATIVE = 8;
#else
constexpr int NATIVE = 4;
#endif
constexpr int LANES = 16;
constexpr int PARTS = LANES / NATIVE;

typedef float native_f __attribute__((vector_size(NATIVE * 4)));
typedef int32_t native_i __attribute__((vector_size(NATIVE * 4)));
typedef native_f unaligned_f __attribute__((aligned(4)));
typedef native_i unaligned_i __attribute__((aligned(4)));
typedef uint16_t native_h __attribute__((vector_size(NATIVE * 2)));
typedef native_h unaligned_h __attribute__((aligned(2)));

struct F16 {
  native_f part[PARTS];
};
struct I16 {
  native_i part[PARTS];
};

#define EACH_PART _Pragma("GCC unroll 4") for (int i = 0; i < PARTS; ++i)
#define LANEWISE(TYPE, SIGNATURE, EXPRESSION) \
  INLINE TYPE SIGNATURE {                     \
    TYPE result;                              \
    EACH_PART result.part[i] = EXPRESSION;    \
    return result;                            \
  }

LANEWISE(F16, operator+(F16 a, F16 b), a.part[i] + b.part[i])
LANEWISE(F16, operator-(F16 a, F16 b), a.part[i] - b.part[i])
LANEWISE(F16, operator*(F16 a, F16 b), a.part[i] * b.part[i])
LANEWISE(F16, operator/(F16 a, F16 b), a.part[i] / b.part[i])
LANEWISE(I16, operator+(I16 a, I16 b), a.part[i] + b.part[i])
LANEWISE(I16, operator&(I16 a, I16 b), a.part[i] & b.part[i])
LANEWISE(I16, operator^(I16 a, I16 b), a.part[i] ^ b.part[i])
LANEWISE(I16, operator|(I16 a, I16 b), a.part[i] | b.part[i])
LANEWISE(I16, operator<<(I16 a, int n), a.part[i] << n)
LANEWISE(I16, operator>>(I16 a, int n), a.part[i] >> n)
LANEWISE(I16, operator<(F16 a, F16 b), a.part[i] < b.part[i])
LANEWISE(I16, operator>(F16 a, F16 b), a.part[i] > b.part[i])
LANEWISE(I16, operator<(I16 a, I16 b), a.part[i] < b.part[i])
LANEWISE(I16, operator>=(I16 a, I16 b), a.part[i] >= b.part[i])
LANEWISE(F16, select(I16 mask, F16 a, F16 b), mask.part[i] ? a.part[i] : b.part[i])
LANEWISE(I16, select(I16 mask, I16 a, I16 b), mask.part[i] ? a.part[i] : b.part[i])
LANEWISE(I16, max(I16 a, I16 b), a.part[i] > b.part[i] ? a.part[i] : b.part[i])
LANEWISE(F16, as_float(I16 a), (native_f)a.part[i])
LANEWISE(I16, as_int(F16 a), (native_i)a.part[i])
LANEWISE(F16, to_float(I16 a), __builtin_convertvector(a.part[i], native_f))
LANEWISE(I16, truncate(F16 a), __builtin_convertvector(a.part[i], native_i))

INLINE native_f splat_native(float x) { return x - native_f{}; }
INLINE F16 splat(float x) {
  F16 c;
  EACH_PART c.part[i] = splat_native(x);
  return c;
}
INLINE I16 splat(int32_t x) {
  I16 c;
  EACH_PART c.part[i] = x - native_i{};
  return c;
}
INLINE F16 zeros() { return splat(0.0f); }

// a * b + c in one rounding where the machine has it, in two where it has not; never left to the compiler's choice,
// because two inlined copies of one kernel must not round differently.
INLINE native_f fma_native(native_f a, native_f b, native_f c) {
#if defined(__AVX512F__)
  return (native_f)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (native_f)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (native_f)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
LANEWISE(F16, fma(F16 a, F16 b, F16 c), fma_native(a.part[i], b.part[i], c.part[i]))

// The larger of both; ``b`` where either is NaN (NaN on NEON), so max(constant, x) keeps a NaN of x.
INLINE native_f max_native(native_f a, native_f b) {
#if defined(__AVX512F__)
  return (native_f)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (native_f)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
  return (native_f)_mm_max_ps((__m128)a, (__m128)b);
#elif defined(__aarch64__)
  return (native_f)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
  return a > b ? a : b;
#endif
}
LANEWISE(F16, max(F16 a, F16 b), max_native(a.part[i], b.part[i]))

// Lane i gets lane i ^ S.
template <int S>
INLINE native_f swap_native(native_f v) {
#if defined(__clang__)
  if constexpr (NATIVE == 16)
    return __builtin_shufflevector(v, v, 0 ^ S, 1 ^ S, 2 ^ S, 3 ^ S, 4 ^ S, 5 ^ S, 6 ^ S, 7 ^ S, 8 ^ S, 9 ^ S, 10 ^ S,
                                   11 ^ S, 12 ^ S, 13 ^ S, 14 ^ S, 15 ^ S);
  else if constexpr (NATIVE == 8)
    return __builtin_shufflevector(v, v, 0 ^ S, 1 ^ S, 2 ^ S, 3 ^ S, 4 ^ S, 5 ^ S, 6 ^ S, 7 ^ S);
  else
    return __builtin_shufflevector(v, v, 0 ^ S, 1 ^ S, 2 ^ S, 3 ^ S);
#else
  native_i lanes;
  for (int i = 0; i < NATIVE; ++i) lanes[i] = i ^ S;
  return __builtin_shuffle(v, lanes);
#endif
}
template <int S>
INLINE F16 swap(F16 v) {
  if constexpr (S >= NATIVE) {
    F16 c;
    EACH_PART c.part[i] = v.part[i ^ (S / NATIVE)];
    return c;
  } else {
    F16 c;
    EACH_PART c.part[i] = swap_native<S>(v.part[i]);
    return c;
  }
}

// Reductions over the sixteen lanes, always by the same tree.
INLINE float sum_lanes(F16 v) {
  v = v + swap<8>(v);
  v = v + swap<4>(v);
  v = v + swap<2>(v);
  v = v + swap<1>(v);
  return v.part[0][0];
}
INLINE float max_lanes(F16 v) {
  v = max(v, swap<8>(v));
  v = max(v, swap<4>(v));
  v = max(v, swap<2>(v));
  v = max(v, swap<1>(v));
  return v.part[0][0];
}
INLINE int32_t max_lanes(I16 v) {
  v = max(v, as_int(swap<8>(as_float(v))));
  v = max(v, as_int(swap<4>(as_float(v))));
  v = max(v, as_int(swap<2>(as_float(v))));
  v = max(v, as_int(swap<1>(as_float(v))));
  return v.part[0][0];
}

INLINE I16 lane_numbers() {
  I16 c;
  for (int i = 0; i < LANES; ++i) c.part[i / NATIVE][i % NATIVE] = i;
  return c;
}

// Nearest integer, ties to even, for |x| < 2^22: the addition does the rounding.
INLINE F16 round_even(F16 x) {
  const F16 magic = splat(12582912.0f);  // 1.5 * 2^23
  return (x + magic) - magic;
}

}  // namespace kvasir::KVASIR_ISA
