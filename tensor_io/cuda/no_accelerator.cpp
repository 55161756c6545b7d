#include "tensor_io/device/accelerator.hpp"

namespace troupe {

Accelerator* accelerator_of_build() noexcept { return nullptr; }

}  // namespace troupe
