#pragma once
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <string_view>

namespace troupe {

/// The targets of the files named _avx2 and _avx512; see CMakeLists.txt.
enum class InstructionSet { generic, avx2, avx512 };

/// The widest set that this processor has completely. LibTorch's ATEN_CPU_CAPABILITY (default, avx2) holds for Troupe's
/// kernels too, so that a newer processor can act as an older one.
inline InstructionSet instruction_set() noexcept {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;  // clang 14's __builtin_cpu_supports does not know F16C's name
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  const bool avx2 = __builtin_cpu_supports("avx2") && f16c;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const char* most = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string_view limit = most == nullptr ? "" : most;
  if (limit == "default") return InstructionSet::generic;
  if (avx512 && limit != "avx2") return InstructionSet::avx512;
  if (avx2) return InstructionSet::avx2;
#endif
  return InstructionSet::generic;
}

}  // namespace troupe
