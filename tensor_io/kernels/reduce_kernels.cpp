#include "tensor_io/kernels/reduce_kernels.hpp"

#include <cstring>

#include "tensor_io/base/instruction_set.hpp"
#include "tensor_io/kernels/update_kernels.hpp"

namespace troupe {

#define TROUPE_DECLARE_KERNELS(set)                                                               \
  namespace set {                                                                                 \
  void reduce(const ReduceTask& task) noexcept;                                                   \
  void copy_streaming(void* to, const void* from, std::size_t bytes, std::size_t ahead) noexcept; \
  void update(const UpdateTask& task) noexcept;                                                   \
  }
TROUPE_DECLARE_KERNELS(kernels_generic)
#if defined(__x86_64__)
TROUPE_DECLARE_KERNELS(kernels_avx2)
TROUPE_DECLARE_KERNELS(kernels_avx512)
#endif

namespace {

struct Kernels {
  void (*reduce)(const ReduceTask&) noexcept;
  void (*copy_streaming)(void*, const void*, std::size_t, std::size_t) noexcept;
  void (*update)(const UpdateTask&) noexcept;
};

Kernels choose() noexcept {
  switch (instruction_set()) {
#if defined(__x86_64__)
    case InstructionSet::avx512:
      return {kernels_avx512::reduce, kernels_avx512::copy_streaming, kernels_avx512::update};
    case InstructionSet::avx2: return {kernels_avx2::reduce, kernels_avx2::copy_streaming, kernels_avx2::update};
#endif
    default: return {kernels_generic::reduce, kernels_generic::copy_streaming, kernels_generic::update};
  }
}

// Not by ifunc (target_clones): its resolvers run before the sanitizers are set up.
const Kernels kernels = choose();

}  // namespace

void reduce(const ReduceTask& task) noexcept {
  if (task.numel > 0) kernels.reduce(task);
}
void copy_streaming(void* to, const void* from, std::size_t bytes, std::size_t ahead) noexcept {
  kernels.copy_streaming(to, from, bytes, ahead);
}
void update(const UpdateTask& task) noexcept { kernels.update(task); }

}  // namespace troupe
