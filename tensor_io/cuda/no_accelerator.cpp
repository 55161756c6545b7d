#include "tensor_io/device/accelerator.hpp"

namespace troupe {

Accelerator* accelerator() noexcept { return nullptr; }

}  // namespace troupe
