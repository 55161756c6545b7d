#pragma once
#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// LibTorch's optimizers as Troupe's: one adapter for each that a program hands over. Compute's thread.
class OptimizerAdapters {
 public:
  /// For `operation`. Throws Error(usage) without a model (nullptr).
  Optimizer& adapter_of(torch::optim::Optimizer& optimizer, const torch::nn::Module* model, const char* operation);

 private:
  std::vector<std::pair<torch::optim::Optimizer*, std::unique_ptr<Optimizer>>> adapters_;
};

}  // namespace troupe
