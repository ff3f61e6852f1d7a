// Dot products of bytes: sixteen 32-bit lanes, each summing four products.  Sums of integers are exact, so every machine
// gets the same ones; what differs is which side an instruction takes unsigned, and that nothing may saturate.
#pragma once

#include "simd.h"

namespace kvasir::KVASIR_ISA {

#if (defined(__AVX512VNNI__) && defined(__AVX512F__)) || defined(__AVXVNNI__)
#define KVASIR_HAS_DPBUSD 1
#endif

typedef int8_t native_b __attribute__((vector_size(NATIVE * 4)));
typedef native_b unaligned_b __attribute__((aligned(1)));

// Sixty-four bytes: four for each of the sixteen lanes.
struct B16 {
  native_b part[PARTS];
};

INLINE B16 load_bytes(const void* p) {
  B16 c;
  EACH_PART c.part[i] = *(const unaligned_b*)((const char*)p + i * NATIVE * 4);
  return c;
}
// The same four bytes in every lane.
INLINE B16 splat_bytes(const void* p) {
  int32_t four;
  memcpy(&four, p, 4);
  B16 c;
  EACH_PART c.part[i] = (native_b)(four - native_i{});
  return c;
}

// acc + sum of four products a * b with a in [0, 127] and b in [-127, 127].
INLINE native_i dot_native(native_i acc, native_b a, native_b b) {
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
  return (native_i)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__)
  return (native_i)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
#elif defined(__AVX512BW__)
  const __m512i pairs = _mm512_maddubs_epi16((__m512i)a, (__m512i)b);  // at most 2 * 127 * 127: no saturation
  return acc + (native_i)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)a, (__m256i)b);
  return acc + (native_i)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
  return (native_i)vdotq_s32((int32x4_t)acc, (int8x16_t)a, (int8x16_t)b);
#elif defined(__aarch64__)
  const int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)a), vget_low_s8((int8x16_t)b));
  const int16x8_t high = vmull_high_s8((int8x16_t)a, (int8x16_t)b);
  return (native_i)vpadalq_s16((int32x4_t)acc, vpaddq_s16(low, high));
#elif defined(__SSE2__)
  const __m128i sign_a = _mm_cmpgt_epi8(_mm_setzero_si128(), (__m128i)a);
  const __m128i sign_b = _mm_cmpgt_epi8(_mm_setzero_si128(), (__m128i)b);
  const __m128i low = _mm_madd_epi16(_mm_unpacklo_epi8((__m128i)a, sign_a), _mm_unpacklo_epi8((__m128i)b, sign_b));
  const __m128i high = _mm_madd_epi16(_mm_unpackhi_epi8((__m128i)a, sign_a), _mm_unpackhi_epi8((__m128i)b, sign_b));
  const __m128 even = _mm_shuffle_ps(_mm_castsi128_ps(low), _mm_castsi128_ps(high), 0x88);
  const __m128 odd = _mm_shuffle_ps(_mm_castsi128_ps(low), _mm_castsi128_ps(high), 0xdd);
  return acc + (native_i)_mm_add_epi32(_mm_castps_si128(even), _mm_castps_si128(odd));
#else
  for (int lane = 0; lane < NATIVE; ++lane) {
    for (int byte = 0; byte < 4; ++byte) acc[lane] += int32_t(a[lane * 4 + byte]) * int32_t(b[lane * 4 + byte]);
  }
  return acc;
#endif
}
LANEWISE(I16, dot(I16 acc, B16 a, B16 b), dot_native(acc.part[i], a.part[i], b.part[i]))

// The same for two signed sides, one of which (x) is stored as code + 128 and loaded once for many of the other (y).
#if defined(KVASIR_HAS_DPBUSD)
// The instruction takes x as it is stored; the sum starts at -128 * (sum of y) to make up for it.
constexpr int32_t STORED_OFFSET = 128;
INLINE B16 as_signed(B16 x) { return x; }
INLINE native_i dot_signed_native(native_i acc, native_b x, native_b y) { return dot_native(acc, x, y); }
#else
constexpr int32_t STORED_OFFSET = 0;
INLINE B16 as_signed(B16 x) {
  B16 c;
  EACH_PART c.part[i] = x.part[i] ^ (int8_t)-128;
  return c;
}
INLINE native_i dot_signed_native(native_i acc, native_b x, native_b y) {
#if defined(__AVX512BW__)
  // |y| * (x with y's sign): the unsigned side stays below 128.
  const __mmask64 is_negative = _mm512_movepi8_mask((__m512i)y);
  const __m512i turned = _mm512_mask_sub_epi8((__m512i)x, is_negative, _mm512_setzero_si512(), (__m512i)x);
  return dot_native(acc, (native_b)_mm512_abs_epi8((__m512i)y), (native_b)turned);
#elif defined(__AVX2__)
  const __m256i turned = _mm256_sign_epi8((__m256i)x, (__m256i)y);
  return dot_native(acc, (native_b)_mm256_abs_epi8((__m256i)y), (native_b)turned);
#else
  return dot_native(acc, x, y);
#endif
}
#endif
LANEWISE(I16, dot_signed(I16 acc, B16 x, B16 y), dot_signed_native(acc.part[i], x.part[i], y.part[i]))

}  // namespace kvasir::KVASIR_ISA
