#pragma once
#include <memory>

#include "tensor_io/nccl_api.hpp"

namespace troupe {

/// The NCCL that this program is linked with.
std::shared_ptr<NcclApi> nccl_library();

}  // namespace troupe
