#include "tensor_io/reduce_kernels.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstring>

namespace troupe {

#define TROUPE_DECLARE_KERNELS(set)                                            \
  namespace set {                                                              \
  void reduce(const ReduceTask& task) noexcept;                                \
  void copy_streaming(void* to, const void* from, std::size_t bytes) noexcept; \
  }
TROUPE_DECLARE_KERNELS(kernels_generic)
#if defined(__x86_64__)
TROUPE_DECLARE_KERNELS(kernels_avx2)
TROUPE_DECLARE_KERNELS(kernels_avx512)
#endif

namespace {

struct Kernels {
  const char* name;
  void (*reduce)(const ReduceTask&) noexcept;
  void (*copy_streaming)(void*, const void*, std::size_t) noexcept;
};

#if defined(__x86_64__)
bool has_f16c() noexcept {  // clang 14's __builtin_cpu_supports does not know its name
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

Kernels choose() noexcept {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512) return {"avx512", kernels_avx512::reduce, kernels_avx512::copy_streaming};
  if (avx2) return {"avx2", kernels_avx2::reduce, kernels_avx2::copy_streaming};
#endif
  return {"generic", kernels_generic::reduce, kernels_generic::copy_streaming};
}

// Not by ifunc (target_clones): its resolvers run before the sanitizers are set up.
const Kernels kernels = choose();

}  // namespace

void reduce(const ReduceTask& task) noexcept {
  if (task.numel > 0) kernels.reduce(task);
}
void copy_streaming(void* to, const void* from, std::size_t bytes) noexcept { kernels.copy_streaming(to, from, bytes); }
const char* reduce_kernel_name() noexcept { return kernels.name; }

}  // namespace troupe
