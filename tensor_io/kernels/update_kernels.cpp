#include "tensor_io/kernels/update_kernels.hpp"

#include "tensor_io/base/instruction_set.hpp"

namespace troupe {

namespace kernels_generic {
void update(const UpdateTask& task) noexcept;
}
#if defined(__x86_64__)
namespace kernels_avx2 {
void update(const UpdateTask& task) noexcept;
}
namespace kernels_avx512 {
void update(const UpdateTask& task) noexcept;
}
#endif

namespace {

auto choose() noexcept {
  switch (instruction_set()) {
#if defined(__x86_64__)
    case InstructionSet::avx512: return kernels_avx512::update;
    case InstructionSet::avx2: return kernels_avx2::update;
#endif
    default: return kernels_generic::update;
  }
}

const auto kernel = choose();  // not by ifunc: see reduce_kernels.cpp

}  // namespace

void update(const UpdateTask& task) noexcept { kernel(task); }

}  // namespace troupe
