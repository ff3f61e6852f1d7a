// All kernels for one instruction set: compiled once per set with its flags and its name in KVASIR_ISA.
#include "attention.h"
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

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

static const KernelTable table = {TEXT(KVASIR_ISA), norm_rows, add_norm_rows, add_product, rotate_rows,
                                  swiglu_rows,      qkv_write, attend,        select_blocks, exponentials};

}  // namespace kvasir::KVASIR_ISA

#define JOINED_OF(a, b) a##b
#define JOINED(a, b) JOINED_OF(a, b)

namespace kvasir {
const KernelTable* JOINED(kernels_, KVASIR_ISA)() { return &KVASIR_ISA::table; }
}  // namespace kvasir
