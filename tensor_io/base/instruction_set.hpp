#pragma once
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace troupe {

/// What the files named _avx2 and _avx512 are compiled for; see CMakeLists.txt.
enum class InstructionSet { generic, avx2, avx512 };

/// The widest that this processor has all of.
inline InstructionSet instruction_set() noexcept {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;  // clang 14's __builtin_cpu_supports does not know F16C's name
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  const bool avx2 = __builtin_cpu_supports("avx2") && f16c;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512) return InstructionSet::avx512;
  if (avx2) return InstructionSet::avx2;
#endif
  return InstructionSet::generic;
}

}  // namespace troupe
