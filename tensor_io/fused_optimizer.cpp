#include "tensor_io/fused_optimizer.hpp"

#include <torch/torch.h>

#include <map>
#include <set>

#include "tensor_io/error.hpp"

namespace troupe {
namespace {

// A zeroed tensor per parameter, all in one buffer, each at 64 bytes.
std::vector<at::Tensor> flat_like(const NamedTensors& parameters) {
  std::map<at::ScalarType, std::int64_t> length, offset;
  const auto padded = [](const at::Tensor& t) {
    const auto line = 64 / static_cast<std::int64_t>(t.element_size());
    return (t.numel() + line - 1) / line * line;
  };
  for (const auto& [name, parameter] : parameters) length[parameter.scalar_type()] += padded(parameter);
  std::map<at::ScalarType, at::Tensor> flat;
  for (const auto& [dtype, numel] : length) flat[dtype] = at::zeros({numel}, at::TensorOptions().dtype(dtype));
  std::vector<at::Tensor> views;
  for (const auto& [name, parameter] : parameters) {
    const auto slice = flat[parameter.scalar_type()].narrow(0, offset[parameter.scalar_type()], parameter.numel());
    offset[parameter.scalar_type()] += padded(parameter);
    views.push_back(parameter.is_non_overlapping_and_dense() ? slice.as_strided(parameter.sizes(), parameter.strides())
                                                             : slice.view(parameter.sizes()));
  }
  return views;
}

}  // namespace

FusedOptimizer::FusedOptimizer(Kind kind, OptimizerOptions options, std::vector<ParameterGroup> groups)
    : kind_(kind), options_(std::move(options)), groups_(std::move(groups)) {
  std::set<std::string> names;
  for (const auto& group : groups_) {
    const auto first = flat_like(group.parameters);
    const auto second = kind_ == Kind::adamw ? flat_like(group.parameters) : std::vector<at::Tensor>();
    auto& moments = moments_.emplace_back();
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      if (!names.insert(group.parameters[i].first).second) {
        throw Error(ErrorCode::usage, "optimizer", "parameter " + group.parameters[i].first + " is in two groups",
                    "put each parameter into one group");
      }
      moments.push_back({first[i], kind_ == Kind::adamw ? second[i] : at::Tensor(), at::zeros({}, at::kFloat)});
    }
  }
}

void FusedOptimizer::step(double lr) {
  torch::NoGradGuard no_grad;
  for (std::size_t g = 0; g < groups_.size(); ++g) step_group(g, lr * groups_[g].lr_scale);
}

void FusedOptimizer::step_group(std::size_t index, double lr) {
  const auto& group = groups_[index];
  const double weight_decay = group.weight_decay >= 0 ? group.weight_decay : options_.weight_decay;
  // One call for the parameters that have been updated before, one for those that are new: SGD's first step sets the buffer.
  struct Lists {
    std::vector<at::Tensor> parameters, gradients, first, second, steps;
  };
  Lists lists[2];
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const auto& parameter = group.parameters[i].second;
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    auto& moments = moments_[index][i];
    const bool fresh = kind_ == Kind::sgd && moments.step.item<float>() == 0;
    auto& list = lists[fresh ? 1 : 0];
    list.parameters.push_back(parameter);
    list.gradients.push_back(gradient);
    list.first.push_back(moments.first);
    if (kind_ == Kind::adamw) list.second.push_back(moments.second);
    list.steps.push_back(moments.step);
    moments.step.add_(1);
  }
  for (int fresh = 0; fresh < 2; ++fresh) {
    auto& list = lists[fresh];
    if (list.parameters.empty()) continue;
    if (kind_ == Kind::adamw) {
      at::_fused_adamw_(list.parameters, list.gradients, list.first, list.second, {}, list.steps, lr, options_.beta1, options_.beta2,
                        weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
    } else {
      at::_fused_sgd_(list.parameters, list.gradients, options_.momentum != 0 ? at::TensorList(list.first) : at::TensorList(), weight_decay,
                      options_.momentum, lr,
                      /*dampening=*/0, options_.nesterov, /*maximize=*/false, /*is_first_step=*/fresh == 1);
    }
  }
}

NamedTensors FusedOptimizer::state() {
  NamedTensors state;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::size_t i = 0; i < groups_[g].parameters.size(); ++i) {
      const auto& name = groups_[g].parameters[i].first;
      const auto& moments = moments_[g][i];
      state.emplace_back(name + (kind_ == Kind::sgd ? ".momentum_buffer" : ".exp_avg"), moments.first);
      if (kind_ == Kind::adamw) state.emplace_back(name + ".exp_avg_sq", moments.second);
      state.emplace_back(name + ".step", moments.step);
    }
  }
  return state;
}

void FusedOptimizer::load_state(const NamedTensors& loaded) {
  torch::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> values(loaded.begin(), loaded.end());
  for (auto& [name, mine] : state()) {
    const auto found = values.find(name);
    if (found == values.end()) {
      throw Error(ErrorCode::mismatch, "optimizer state", "there is no " + name,
                  "resume with the optimizer that wrote the checkpoint (this one is " + this->name() + ")");
    }
    if (found->second.sizes() != mine.sizes())
      throw Error(ErrorCode::mismatch, "optimizer state", name + " has another shape than the parameter");
    mine.copy_(found->second);
    values.erase(found);
  }
  if (!values.empty())
    throw Error(ErrorCode::mismatch, "optimizer state", values.begin()->first + " belongs to no parameter of the model",
                "resume with the same model");
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<ParameterGroup> groups) {
  if (options.optimizer == "sgd") return std::make_unique<FusedOptimizer>(FusedOptimizer::Kind::sgd, options, std::move(groups));
  if (options.optimizer == "adamw") return std::make_unique<FusedOptimizer>(FusedOptimizer::Kind::adamw, options, std::move(groups));
  throw Error(ErrorCode::usage, "optimizer", "there is no optimizer '" + options.optimizer + "'", "known: sgd, adamw");
}

}  // namespace troupe
