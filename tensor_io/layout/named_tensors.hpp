#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

/// Tensors by name, in a fixed order: a model's state dict, an optimizer's moments, what a batch holds.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Whether tensors of this at::ScalarType go from rank to rank in copies of a state: of real numbers, a byte and more.
inline bool is_real(int dtype) {
  constexpr at::ScalarType kinds[] = {at::kByte, at::kChar,  at::kShort,  at::kInt,  at::kLong,
                                      at::kHalf, at::kFloat, at::kDouble, at::kBool, at::kBFloat16};
  return std::find(std::begin(kinds), std::end(kinds), static_cast<at::ScalarType>(dtype)) != std::end(kinds);
}

}  // namespace troupe
