#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace troupe {

/// Tensors by name, in a fixed order: a model's state dict, an optimizer's moments, the fields of a batch.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

}  // namespace troupe
