#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensor_io/kernels/update_kernels.hpp"
#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// Parameters that share hyper-parameters.
struct ParameterGroup {
  NamedTensors parameters;   ///< leaves of the model, by their names in it
  double lr_scale = 1;       ///< multiplies the scheduled rate
  double weight_decay = -1;  ///< negative: the optimizer's default
};

/// One parameter, for updates outside of the optimizer (Optimizer::elements).
struct ElementState {
  std::string name;          ///< as in the groups
  at::Tensor parameter;      ///< as in the groups
  at::Tensor first, second;  ///< moments, in the parameter's shape and strides; undefined if the optimizer has none
  at::Tensor step;           ///< () f32: updates so far
  /// The rule of update number `step` (from 1) at the schedule's `lr`. May outlive the optimizer.
  std::function<UpdateRule(double lr, double step)> rule;
  /// Of the coming update.
  UpdateRule next_rule(double lr) const { return rule(lr, static_cast<double>(*step.const_data_ptr<float>()) + 1); }
};

/// An element-wise optimizer: applies the `.grad` of its parameters to them. Parameters whose gradient is undefined are
/// left alone (not decayed either). Compute's thread only. State is keyed by parameter name, so that any world size can
/// load it.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// From 1, another one for each object, also for a later one at the same address.
  std::uint64_t id() const noexcept { return id_; }
  virtual std::string name() const = 0;  ///< sgd, adamw, or a class of torch::optim
  /// One step at this rate (the schedule's; groups scale it). With has_own_rates `lr` is the schedule's factor of each.
  virtual void step(double lr) = 0;
  /// Its groups have their own rates, as a torch::optim optimizer's do; a schedule gives a factor, 1 without one.
  virtual bool has_own_rates() const { return false; }
  /// The first group's rate in a step with `lr`, for reports.
  virtual double first_rate(double lr) const { return lr; }
  /// As step if `skip` is 0, and nothing at all if it is 1: () f32 beside the parameters, which the host does not read.
  /// Throws Error(usage) in an optimizer that decides on the host, as the default does.
  virtual void step_unless(const at::Tensor& skip, double lr);
  /// As in a checkpoint without its "optimizer" in front: PARAMETER.momentum_buffer, PARAMETER.exp_avg, PARAMETER.step
  /// and so on. The tensors are the live ones.
  virtual NamedTensors state() = 0;
  /// Copies values in; creates state that does not exist yet. Throws Error(mismatch) for a missing or unknown name or
  /// another shape.
  virtual void load_state(const NamedTensors& state) = 0;
  /// The parameter groups.
  virtual const std::vector<ParameterGroup>& groups() const = 0;
  /// For updates outside of `step`: all parameters, with the live tensors, which may get other memory (set_data). Code
  /// that makes an update writes new values and adds 1 to `step`. Empty if an update is more than a rule for each
  /// element, or the values are not f32 on the CPU; `why_not` then has the reason.
  virtual std::vector<ElementState> elements(std::string& why_not);

  /// For a parameter, the tensor that is updated instead: this rank's slice of it, empty if the rank has
  /// none.
  using Replacement = std::function<at::Tensor(const at::Tensor& parameter)>;
  /// Before the first step: keeps names, groups and hyper-parameters, and forgets parameters whose replacement is
  /// empty. A strategy that shards the state calls it. Throws Error(usage) after a step; the default does so always.
  virtual void replace_parameters(const Replacement& replacement);
  /// As if replace_parameters had never been called and no step been made. Does nothing if that is so.
  virtual void restore_parameters() {}

 protected:
  /// Its state has been dropped with the optimizer behind it.
  void take_new_id() noexcept { id_ = new_id(); }

 private:
  static std::uint64_t new_id() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
  std::uint64_t id_ = new_id();
};

}  // namespace troupe
