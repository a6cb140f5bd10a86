#include "base/vector_unit.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lockstep {
namespace {

#if defined(__x86_64__)
bool HasF16c() {
  unsigned int eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

VectorUnit FindBest() {
  if (!__builtin_cpu_supports("avx2") || !HasF16c()) {
    return VectorUnit::kBaseline;
  }
  const bool has_avx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has_avx512 ? VectorUnit::kAvx512 : VectorUnit::kAvx2;
}
#else
VectorUnit FindBest() { return VectorUnit::kBaseline; }
#endif

}  // namespace

VectorUnit BestVectorUnit() {
  static const VectorUnit kBest = FindBest();
  return kBest;
}

}  // namespace lockstep
