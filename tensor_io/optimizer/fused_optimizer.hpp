#pragma once
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tensor_io/optimizer/optimizer.hpp"
#include "tensor_io/optimizer/optimizer_options.hpp"

namespace troupe {

/// The gradient in the kernels' form: with the parameter's strides. Throws Error(usage) for another dtype or shape, or
/// a sparse one.
at::Tensor kernel_gradient(const std::string& name, const at::Tensor& parameter, const at::Tensor& gradient);

/// SGD and AdamW (Loshchilov and Hutter, 2019) through LibTorch's fused kernels, one call per parameter group: the bits
/// are those of torch.optim with fused=True, and the time a twelfth of LibTorch's C++ optimizers.
///
/// The moments of a group lie in one flat buffer per dtype, each at 64 bytes and in its parameter's strides. A
/// parameter without a gradient keeps its own count of steps, so that AdamW's bias correction and SGD's first step are
/// right when it comes back.
class FusedOptimizer final : public Optimizer {
 public:
  enum class Kind { sgd, adamw };
  /// Throws Error(usage) for options out of range, a parameter that is in two groups, or one that is not dense or not
  /// floating point.
  FusedOptimizer(Kind kind, OptimizerOptions options, std::vector<ParameterGroup> groups);

  std::string name() const override { return kind_ == Kind::sgd ? "sgd" : "adamw"; }
  /// Gradients may have any strides; other strides than the parameter's cost a copy. Throws Error(usage) for another
  /// dtype or a sparse one.
  void step(double lr) override;
  void step_unless(const at::Tensor& skip, double lr) override;
  NamedTensors state() override;
  void load_state(const NamedTensors& state) override;
  const std::vector<ParameterGroup>& groups() const override { return groups_; }
  std::vector<ElementState> elements(std::string& why_not) override;
  void replace_parameters(const Replacement& replacement) override;
  void restore_parameters() override;

 private:
  struct Moments {
    at::Tensor first;   // SGD: momentum buffer, undefined without momentum; AdamW: exp_avg
    at::Tensor second;  // AdamW: exp_avg_sq
    at::Tensor
        step;  // f32 scalar as in PyTorch: the number of updates of this parameter; beside it on a GPU, for the kernel
    std::optional<bool> fresh;  // on a GPU: step is 0; empty if it may have been written to, and must be read
  };
  /// The arguments of one call of a kernel, kept so that a step allocates nothing.
  struct Lists {
    std::vector<at::Tensor> parameters, gradients, first, second, steps;
    void clear();
  };
  static bool is_fresh(Moments& moments);
  static void count_step(Moments& moments);
  void make_moments();
  double weight_decay_of(const ParameterGroup& group) const {
    return group.weight_decay >= 0 ? group.weight_decay : options_.weight_decay;
  }
  static UpdateRule rule(Kind kind, const OptimizerOptions& options, double weight_decay, double lr, double step);
  void step_group(std::size_t index, double lr, const at::Tensor& skip);
  void launch(Lists& lists, double lr, double weight_decay, bool first_step, const at::Tensor& skip);

  Kind kind_;
  OptimizerOptions options_;
  std::vector<ParameterGroup> groups_, replaced_;
  std::vector<std::vector<Moments>> moments_;  // as groups_; made when first needed: by then parameters may be slices
  std::map<at::ScalarType, Lists> known_, fresh_;  // by dtype: a kernel takes one dtype
};

/// The optimizer that the options name. Throws Error(usage) for an unknown name.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<ParameterGroup> groups);

}  // namespace troupe
