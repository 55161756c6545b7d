#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace troupe {

/// The L2 norm of all tensors together, added up in f64 in the order of the list: the same bits wherever the tensors hold the same bits.
double global_norm(const std::vector<at::Tensor>& tensors);

}  // namespace troupe
