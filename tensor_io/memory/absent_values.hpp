#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace troupe {

/// A tensor with the sizes and options of `like` whose values are elsewhere. On the CPU it lies in AbsentMemory, with
/// `what` as explanation. On a device every element is one NaN, so a computation with it gives NaN. `like`: floating
/// point.
at::Tensor absent_values(const at::Tensor& like, const std::string& what);

/// Made by absent_values on a device.
bool are_absent(const at::Tensor& tensor);

}  // namespace troupe
