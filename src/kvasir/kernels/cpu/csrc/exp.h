// Exponentials: the same instructions in every kernel, so equal arguments give equal bits everywhere.
#pragma once

#include "simd.h"

namespace kvasir::KVASIR_ISA {

// 2^r for |r| <= 1/2: minimax in relative error (2.0e-9) with the constant term fixed at 1, fitted by Lawson iteration.
INLINE F16 exp2_fraction(F16 r) {
  F16 p = splat(0x1.41fbbcp-13f);
  p = fma(p, r, splat(0x1.5f3e54p-10f));
  p = fma(p, r, splat(0x1.3b2d4cp-7f));
  p = fma(p, r, splat(0x1.c6aee8p-5f));
  p = fma(p, r, splat(0x1.ebfbdcp-3f));
  p = fma(p, r, splat(0x1.62e430p-1f));
  return fma(p, r, splat(1.0f));
}

// 2^x for x <= 0.  Below -126 the result is 0: subnormal weights would only slow the products that use them.
// -inf gives 0, NaN stays NaN.  ``fraction``: 2^r for |r| <= 1/2.
template <class Fraction>
INLINE F16 exp2_nonpositive(F16 x, Fraction fraction) {
#if defined(__AVX512F__)
  __m512 v = (__m512)x.part[0];
  __mmask16 keep = _mm512_cmp_ps_mask(v, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  F16 n, c;
  n.part[0] = (native_f)_mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  F16 p = fraction(x - n);
  c.part[0] = (native_f)_mm512_maskz_scalef_ps(keep, (__m512)p.part[0], (__m512)n.part[0]);
  return c;
#else
  const F16 magic = splat(12582912.0f + 127.0f);  // the sum's low bits are n + 127: an exponent field, ready made
  F16 bounded = max(splat(-126.0f), x);
  F16 shifted = bounded + magic;
  F16 power = as_float(as_int(shifted) << 23);
  F16 value = fraction(bounded - (shifted - magic)) * power;
  return select(x < splat(-126.0f), zeros(), value);
#endif
}
INLINE F16 exp2_nonpositive(F16 x) {
  return exp2_nonpositive(x, [](F16 r) { return exp2_fraction(r); });
}

// e^x.  0 below -87.3, infinity above 88; NaN stays NaN.
INLINE F16 exp_any(F16 x) {
  const F16 log2e = splat(1.44269504f), largest = splat(88.0f), smallest = splat(-87.3f);
  F16 bounded = max(smallest, select(x > largest, largest, x));
  F16 n = round_even(bounded * log2e);
  // ln 2 in two pieces: the product of n with the first is exact.
  F16 r = fma(n, splat(-0.693145752f), bounded);
  r = fma(n, splat(-1.42860677e-6f), r);
  F16 power = as_float((truncate(n) + splat(127)) << 23);
  F16 value = exp2_fraction(r * log2e) * power;
  value = select(x > largest, splat(__builtin_inff()), value);
  return select(x < smallest, zeros(), value);
}

}  // namespace kvasir::KVASIR_ISA
