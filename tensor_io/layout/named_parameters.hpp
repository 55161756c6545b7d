#pragma once
#include <torch/nn/module.h>

#include <set>

#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// Each parameter of the model once, under its first name, in the order of registration. A tensor may be registered
/// under several names, or its module may be. It has its first name everywhere: in optimizer state, checkpoints,
/// strategies and votes. LibTorch's named_parameters lists it under each, Python's once.
inline NamedTensors unique_parameters(const torch::nn::Module& model) {
  NamedTensors unique;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& item : model.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) unique.emplace_back(item.key(), item.value());
  }
  return unique;
}

}  // namespace troupe
