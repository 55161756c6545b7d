#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// GradientSummary's device_checks for these gradients of all ranks, on a device: (ranks, 2) f64 there. Undefined on
/// the CPU. Collective; waits for no device.
at::Tensor checks_over_ranks(const std::vector<at::Tensor>& gradients, Communicator& communicator);

}  // namespace troupe
