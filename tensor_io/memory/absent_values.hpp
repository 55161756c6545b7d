#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace troupe {

/// A tensor with the sizes and options of `like` whose values are elsewhere. On the CPU it lies in AbsentMemory, which
/// has `what` to say; on a device every element is one NaN, so what computes with it computes NaN. `like`: floating
/// point.
at::Tensor absent_values(const at::Tensor& like, const std::string& what);

/// Made by absent_values on a device.
bool are_absent(const at::Tensor& tensor);

}  // namespace troupe
