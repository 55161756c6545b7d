#pragma once
#include <memory>

#include "tensor_io/communicator/nccl/nccl_api.hpp"

namespace troupe {

/// The NCCL that this program is linked with.
std::shared_ptr<NcclApi> nccl_library();

}  // namespace troupe
