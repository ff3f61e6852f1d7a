// All kernels for one instruction set: compiled once per set with its flags and its name in KVASIR_ISA.
#include "attention.h"
#include "linear.h"
#include "qkv.h"
#include "rows.h"
#include "select.h"

namespace kvasir::KVASIR_ISA {

static void exponentials(const float* x, float* exp2_out, float* exp_out, int64_t count) {
  for_lanes(count, [&](int64_t i, auto part) {
    F16 value = load(x + i, part);
    store(exp2_out + i, exp2_nonpositive(value), part);
    store(exp_out + i, exp_any(value), part);
  });
}

// The fastest this machine multiplies and adds: chains that wait for nothing but themselves.  Returns how many FMAs.
static int64_t multiply_adds(int64_t rounds, float* out) {
  F16 sum[ACCUMULATORS];
  for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = splat(float(i));
  const F16 factor = splat(0.5f), term = splat(1.0f);
  for (int64_t n = 0; n < rounds; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = fma(sum[i], factor, term);
  }
  for (int i = 1; i < ACCUMULATORS; ++i) sum[0] = sum[0] + sum[i];
  store(out, sum[0], Whole{});
  return rounds * ACCUMULATORS * LANES;
}

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

static const KernelTable table = {TEXT(KVASIR_ISA), norm_rows, add_norm_rows, add_product, rotate_rows,
                                  swiglu_rows,      qkv_write, attend,        select_blocks, pack_codes,
                                  multiply,         multiply_best, multiply_unpacked, row_starts, exponentials,
                                  multiply_adds};

}  // namespace kvasir::KVASIR_ISA

#define JOINED_OF(a, b) a##b
#define JOINED(a, b) JOINED_OF(a, b)

namespace kvasir {
const KernelTable* JOINED(kernels_, KVASIR_ISA)() { return &KVASIR_ISA::table; }
}  // namespace kvasir
