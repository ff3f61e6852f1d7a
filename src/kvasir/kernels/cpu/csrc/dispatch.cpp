#include "dispatch.h"

#include <stdexcept>
#include <vector>

namespace kvasir {

namespace {

struct Candidate {
  const KernelTable* table;
  bool runs_here;
};

// Best first.
std::vector<Candidate> candidates() {
  std::vector<Candidate> all;
#if defined(KVASIR_HAS_AVX512)
  all.push_back({kernels_avx512(), __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                                       __builtin_cpu_supports("avx512cd")});
#endif
#if defined(KVASIR_HAS_AVX2)
  all.push_back({kernels_avx2(), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")});
#endif
#if defined(KVASIR_HAS_NEON)
  all.push_back({kernels_neon(), true});
#endif
  all.push_back({kernels_plain(), true});
  return all;
}

}  // namespace

const KernelTable* choose_kernels(const std::string& wanted) {
  std::string runnable;
  for (const Candidate& candidate : candidates()) {
    if (!candidate.runs_here) continue;
    if (wanted.empty() || wanted == candidate.table->name) return candidate.table;
    runnable += (runnable.empty() ? "" : ", ") + std::string(candidate.table->name);
  }
  throw std::invalid_argument("the kernels for '" + wanted + "' do not run on this machine; it has " + runnable + ".");
}

}  // namespace kvasir
