#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "tensor_io/base/error.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/communicator/nccl/nccl_api.hpp"

namespace troupe {

/// NCCL's type for a tensor's elements. A bool is a byte of 0 or 1. Error(usage) if NCCL has no such type.
NcclType nccl_type(at::ScalarType dtype);
/// A bool's sum is or, which is the larger byte; its product is and, the smaller one.
NcclOp nccl_op(ReduceOp op, at::ScalarType dtype);

/// The error for a result that is neither success nor in_progress. Its code decides about the job (a peer's fault may
/// be recovered, a CUDA error ends this process), its remedy says where to look. `detail` is NCCL's last error.
ErrorReport nccl_failure(NcclResult result, const std::string& call, const std::string& detail);
std::string_view to_string(NcclResult result) noexcept;
/// 22809 -> "2.28.9".
std::string nccl_version_text(int version);

}  // namespace troupe
