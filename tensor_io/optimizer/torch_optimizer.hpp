#pragma once
#include <torch/torch.h>

#include <vector>

#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// A user's torch::optim optimizer, behind our interface: element-wise ones (SGD, Adam, AdamW, RMSprop, Adagrad). Their
/// state, which LibTorch keeps by pointer, is named by parameter here. LBFGS needs a closure that runs forward again
/// and is refused.
class TorchOptimizer final : public Optimizer {
 public:
  /// Borrows the optimizer; `model` names its parameters. Throws Error(usage) for LBFGS, for a class whose state has no
  /// names here, and for a parameter that is not the model's.
  TorchOptimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& model);

  /// Where the groups of the optimizer have changed, or another optimizer of the program lies at its address, begins
  /// anew with it. Throws Error(usage) for a parameter that is not the model's, and if slices are among them.
  void follow(const torch::nn::Module& model);

  std::string name() const override { return "torch::optim"; }
  /// Steps with each group's own rate times `factor`. Between steps the rates are the program's: it may read and set
  /// them, for example by a scheduler.
  void step(double factor) override;
  bool has_own_rates() const override { return true; }
  double first_rate(double factor) const override;
  /// The tensors that LibTorch has created so far: none for a parameter that never had a gradient. `step` is a copy,
  /// the tensors are the live ones.
  NamedTensors state() override;
  /// All or nothing. A parameter that `state` lacks is one that never had a gradient.
  void load_state(const NamedTensors& state) override;
  const std::vector<ParameterGroup>& groups() const override { return groups_; }
  void replace_parameters(const Replacement& replacement) override;
  void restore_parameters() override;

 private:
  bool has_groups() const;
  std::vector<ParameterGroup> named_groups(const torch::nn::Module& model) const;

  torch::optim::Optimizer& optimizer_;
  std::vector<ParameterGroup> groups_, replaced_;
  double adagrad_start_ = 0;  // the start of its sums
};

}  // namespace troupe
