#pragma once
#include <ATen/core/Tensor.h>

namespace troupe {

/// On a device what AbsentMemory is on the CPU: a tensor with the sizes and options of `like` whose every element is
/// one NaN. What computes with it computes NaN. `like`: floating point.
at::Tensor absent_values(const at::Tensor& like);

/// Made by absent_values.
bool are_absent(const at::Tensor& tensor);

}  // namespace troupe
