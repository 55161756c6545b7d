#pragma once
#include <cstddef>

#include "tensor_io/communicator/nccl/nccl_api.hpp"

namespace troupe::test {

/// Of one element, for what stands in for NCCL.
inline std::size_t bytes_of(NcclType type) {
  switch (type) {
    case NcclType::f64:
    case NcclType::int64: return 8;
    case NcclType::f32:
    case NcclType::int32: return 4;
    case NcclType::f16:
    case NcclType::bf16: return 2;
    default: return 1;
  }
}

}  // namespace troupe::test
