#include "dispatch.h"

#include <stdexcept>
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace kvasir {

namespace {

#if defined(KVASIR_HAS_NEON)
bool has_neon_dot() {
#if defined(__linux__)
  constexpr unsigned long ASIMDDP = 1ul << 20;  // of AT_HWCAP
  return getauxval(AT_HWCAP) & ASIMDDP;
#else
  return true;  // every 64-bit machine of the other systems has it
#endif
}
#endif

struct Candidate {
  const KernelTable* table;
  bool runs_here;
};

// Best first.
std::vector<Candidate> candidates() {
  std::vector<Candidate> all;
#if defined(KVASIR_HAS_AVX512)
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512cd");
  all.push_back({kernels_avx512vnni(), has_avx512 && __builtin_cpu_supports("avx512vnni")});
  all.push_back({kernels_avx512(), has_avx512});
#endif
#if defined(KVASIR_HAS_AVX2)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  all.push_back({kernels_avxvnni(), has_avx2 && __builtin_cpu_supports("avxvnni")});
  all.push_back({kernels_avx2(), has_avx2});
#endif
#if defined(KVASIR_HAS_NEON)
  all.push_back({kernels_neondot(), has_neon_dot()});
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
