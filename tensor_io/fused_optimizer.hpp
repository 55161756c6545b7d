#pragma once
#include <memory>
#include <vector>

#include "tensor_io/optimizer.hpp"
#include "tensor_io/optimizer_options.hpp"

namespace troupe {

/// SGD and AdamW (Loshchilov and Hutter, 2019) through LibTorch's fused kernels, one call per parameter group: the bits are those of
/// torch.optim with fused=True, and the time a twelfth of LibTorch's C++ optimizers (docs/how_it_works.md).
class FusedOptimizer final : public Optimizer {
 public:
  enum class Kind { sgd, adamw };
  FusedOptimizer(Kind kind, OptimizerOptions options, std::vector<ParameterGroup> groups);

  std::string name() const override { return kind_ == Kind::sgd ? "sgd" : "adamw"; }
  void step(double lr) override;
  NamedTensors state() override;
  void load_state(const NamedTensors& state) override;
  const std::vector<ParameterGroup>& groups() const override { return groups_; }

 private:
  struct Moments {
    at::Tensor first;   // SGD: momentum buffer; AdamW: exp_avg. Views of one flat buffer per group.
    at::Tensor second;  // AdamW: exp_avg_sq
    at::Tensor step;    // f32 scalar: updates of this parameter
  };
  void step_group(std::size_t index, double lr);

  Kind kind_;
  OptimizerOptions options_;
  std::vector<ParameterGroup> groups_;
  std::vector<std::vector<Moments>> moments_;  // as groups_
};

/// The optimizer that the options name. Throws Error(usage) for an unknown name.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<ParameterGroup> groups);

}  // namespace troupe
