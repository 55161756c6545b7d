#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/kernels/gradient_clip.hpp"

namespace troupe {

/// GradientSummary's device_checks for these gradients of all ranks, on a device: (ranks, 2) f64 there. Undefined on
/// the CPU. Collective; waits for no device.
at::Tensor checks_over_ranks(const std::vector<at::Tensor>& gradients, Communicator& communicator);

/// The first of the parameters whose `gradient` has NaN or infinity in it, or -1. Waits for the device.
template <class Parameters>
std::int32_t first_not_finite(const Parameters& parameters) {
  const auto found = std::find_if(parameters.begin(), parameters.end(), [](const auto& parameter) {
    const at::Tensor& gradient = parameter.gradient;
    if (!gradient.defined()) return false;
    return gradient.is_cpu() ? !std::isfinite(sum_of_squares(gradient)) : !gradient.isfinite().all().item<bool>();
  });
  return found == parameters.end() ? -1 : static_cast<std::int32_t>(found - parameters.begin());
}

}  // namespace troupe
