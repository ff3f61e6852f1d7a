// Loads and stores of sixteen lanes in each stored number format, whole or the first n lanes only.
#pragma once

#include "simd.h"

namespace kvasir::KVASIR_ISA {

struct Whole {};
struct First {
  int count;
};

// Calls body(offset, Whole{}) for every sixteen of n, then body(offset, First{rest}).
template <class Body>
INLINE void for_lanes(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) body(i, Whole{});
  if (i < n) body(i, First{int(n - i)});
}

INLINE F16 load(const float* p, Whole) {
  F16 c;
  EACH_PART c.part[i] = *(const unaligned_f*)(p + i * NATIVE);
  return c;
}
INLINE I16 load(const int32_t* p, Whole) {
  I16 c;
  EACH_PART c.part[i] = *(const unaligned_i*)(p + i * NATIVE);
  return c;
}
INLINE void store(float* p, F16 v, Whole) { EACH_PART *(unaligned_f*)(p + i * NATIVE) = v.part[i]; }
INLINE void store(int32_t* p, I16 v, Whole) { EACH_PART *(unaligned_i*)(p + i * NATIVE) = v.part[i]; }

// A part's worth of 16-bit codes in the low halves of 32-bit lanes.
INLINE native_i widen(const void* p) {
#if defined(__AVX512F__)
  return (native_i)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__)
  return (native_i)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__x86_64__)
  return (native_i)_mm_unpacklo_epi16(_mm_loadl_epi64((const __m128i*)p), _mm_setzero_si128());
#else
  return __builtin_convertvector(*(const unaligned_h*)p, native_i);
#endif
}

INLINE F16 load(const bf16* p, Whole) {
  F16 c;
  EACH_PART c.part[i] = (native_f)(widen(p + i * NATIVE) << 16);
  return c;
}
INLINE void store(bf16* p, F16 v, Whole) {
  EACH_PART {
    native_i bits = (native_i)v.part[i];
    native_i rounded = bits + 0x7fff + ((bits >> 16) & 1);
    native_i quiet = bits | 0x400000;  // a NaN must not be rounded into an infinity
    native_i chosen = (bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded;
    *(unaligned_h*)(p + i * NATIVE) = __builtin_convertvector((chosen >> 16) & 0xffff, native_h);
  }
}

#if defined(__aarch64__)
INLINE F16 load(const fp16* p, Whole) {
  F16 c;
  EACH_PART c.part[i] = (native_f)vcvt_f32_f16(vld1_f16((const float16_t*)(p + i * NATIVE)));
  return c;
}
INLINE void store(fp16* p, F16 v, Whole) {
  EACH_PART vst1_f16((float16_t*)(p + i * NATIVE), vcvt_f16_f32((float32x4_t)v.part[i]));
}
#elif defined(__F16C__)
INLINE F16 load(const fp16* p, Whole) {
  F16 c;
  EACH_PART {
#if defined(__AVX512F__)
    c.part[i] = (native_f)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(p + i * NATIVE)));
#else
    c.part[i] = (native_f)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + i * NATIVE)));
#endif
  }
  return c;
}
INLINE void store(fp16* p, F16 v, Whole) {
  EACH_PART {
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i*)(p + i * NATIVE), _mm512_cvtps_ph((__m512)v.part[i], 0));
#else
    _mm_storeu_si128((__m128i*)(p + i * NATIVE), _mm256_cvtps_ph((__m256)v.part[i], 0));
#endif
  }
}
#else
INLINE F16 load(const fp16* p, Whole) {
  F16 c;
  EACH_PART {
    native_i bits = widen(p + i * NATIVE);
    native_i magnitude = (bits & 0x7fff) << 13;
    // Multiplying by 2^112 moves the exponent to fp32's bias and makes subnormals normal.
    native_f value = (native_f)magnitude * 0x1p112f;
    native_i special = magnitude | 0x7f800000;
    native_i chosen = magnitude >= (0x7c00 << 13) ? special : (native_i)value;
    c.part[i] = (native_f)(chosen | (bits & 0x8000) << 16);
  }
  return c;
}
INLINE void store(fp16* p, F16 v, Whole) {
  EACH_PART {
    native_i bits = (native_i)v.part[i];
    native_i magnitude = bits & 0x7fffffff;
    // Normal: rebias, then round to nearest even on the 13 dropped bits (65520 and up becomes infinity by itself).
    native_i normal = (magnitude - (112 << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    normal = normal > 0x7c00 ? native_i{} + 0x7c00 : normal;
    // Subnormal (below 2^-14): adding 0.5 lines the bits up, and the addition rounds.
    native_i small = (native_i)((native_f)magnitude + 0.5f) - 0x3f000000;
    native_i chosen = magnitude < 0x38800000 ? small : normal;
    chosen = magnitude > 0x7f800000 ? native_i{} + 0x7e00 : chosen;
    *(unaligned_h*)(p + i * NATIVE) = __builtin_convertvector(chosen | ((bits >> 16) & 0x8000), native_h);
  }
}
#endif

// A part's worth of bytes in 32-bit lanes.
INLINE native_i widen_bytes(const void* p) {
#if defined(__AVX512F__)
  return (native_i)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
  return (native_i)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  native_i lanes;
  for (int i = 0; i < NATIVE; ++i) lanes[i] = ((const uint8_t*)p)[i];
  return lanes;
#endif
}

// e4m3: 4 bits of exponent with bias 7, 3 of mantissa.
INLINE F16 load(const fp8* p, Whole) {
  F16 c;
  EACH_PART {
    const native_i bits = widen_bytes(p + i * NATIVE);
    const native_i magnitude = bits & 0x7f;
    // Multiplying by 2^120 moves the exponent to fp32's bias and makes subnormals normal.
    const native_i value = (native_i)((native_f)(magnitude << 20) * 0x1p120f);
    const native_i chosen = magnitude == 0x7f ? native_i{} + 0x7fc00000 : value;
    c.part[i] = (native_f)(chosen | (bits & 0x80) << 24);
  }
  return c;
}
// |values| must be at most 448, or NaN.
INLINE void store(fp8* p, F16 v, Whole) {
  typedef uint8_t native_u __attribute__((vector_size(NATIVE)));
  typedef native_u unaligned_u __attribute__((aligned(1)));
  EACH_PART {
    const native_i bits = (native_i)v.part[i];
    const native_i magnitude = bits & 0x7fffffff;
    const native_i normal = (magnitude - (120 << 23) + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
    // Subnormal (below 2^-6): adding 2^14 lines the bits up, and the addition rounds.
    const native_i small = (native_i)((native_f)magnitude + 0x1p14f) - 0x46800000;
    native_i chosen = magnitude < 0x3c800000 ? small : normal;
    chosen = magnitude > 0x7f800000 ? native_i{} + 0x7f : chosen;
    *(unaligned_u*)(p + i * NATIVE) = __builtin_convertvector(chosen | ((bits >> 24) & 0x80), native_u);
  }
}

// The nearest whole numbers, ties to even; |values| must be at most 127 before rounding.
INLINE void store_codes(int8_t* p, F16 v) {
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)v.part[0])));
#else
  const I16 codes = truncate(round_even(v));
  for (int i = 0; i < LANES; ++i) p[i] = (int8_t)codes.part[i / NATIVE][i % NATIVE];
#endif
}

// The rest of a row: through a small buffer, lanes behind the end read as zero.
template <class T>
INLINE auto load(const T* p, First first) {
  T buffer[LANES];
  memset(buffer, 0, sizeof(buffer));
  memcpy(buffer, p, first.count * sizeof(T));
  return load(buffer, Whole{});
}
template <class T>
INLINE void store(T* p, F16 v, First first) {
  T buffer[LANES];
  store(buffer, v, Whole{});
  memcpy(p, buffer, first.count * sizeof(T));
}

}  // namespace kvasir::KVASIR_ISA
