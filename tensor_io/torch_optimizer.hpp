#pragma once
#include <torch/torch.h>

#include <vector>

#include "tensor_io/optimizer.hpp"

namespace troupe {

/// A torch::optim optimizer of the user's, behind our interface: element-wise ones (SGD, Adam, AdamW, RMSprop, Adagrad). Their state, which
/// LibTorch keeps by pointer, is named by parameter here. LBFGS needs a closure that runs forward again and is refused.
class TorchOptimizer final : public Optimizer {
 public:
  /// Borrows the optimizer; `model` names its parameters. Throws Error(usage) for LBFGS and for a parameter that is not the model's.
  TorchOptimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& model);

  std::string name() const override { return "torch::optim"; }
  /// Sets every group's rate to `lr` and steps.
  void step(double lr) override;
  NamedTensors state() override;
  void load_state(const NamedTensors& state) override;
  const std::vector<ParameterGroup>& groups() const override { return groups_; }

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<ParameterGroup> groups_;
};

}  // namespace troupe
