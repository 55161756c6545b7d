#include "tensor_io/optimizer/fused_optimizer.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <map>
#include <set>

#include "tensor_io/base/error.hpp"
#include "tensor_io/memory/absent_values.hpp"

namespace troupe {
namespace {

void require(bool condition, const char* field, double value, const char* remedy) {
  if (!condition)
    throw Error(ErrorCode::usage, "optimizer", std::string(field) + " is " + std::to_string(value), remedy);
}

void check_options(FusedOptimizer::Kind kind, const OptimizerOptions& options) {
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "it must be 0 or more");
  if (kind == FusedOptimizer::Kind::sgd) {
    require(options.momentum >= 0, "momentum", options.momentum, "it must be 0 or more");
    require(!options.nesterov || options.momentum > 0, "momentum", options.momentum,
            "nesterov needs a momentum above 0");
  } else {
    require(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "it must be in [0, 1)");
    require(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "it must be in [0, 1)");
    require(options.eps >= 0, "eps", options.eps, "it must be 0 or more");
  }
}

void check_parameter(const std::string& name, const at::Tensor& parameter) {
  // The kernels walk memory from the first element to the last: no gaps, and one dtype for parameter, gradient and
  // moments.
  if (!parameter.is_non_overlapping_and_dense() && !are_absent(parameter)) {
    throw Error(ErrorCode::usage, "optimizer", "parameter " + name + " is a view with gaps or overlaps",
                "make it contiguous()");
  }
  if (!parameter.is_floating_point()) {
    throw Error(ErrorCode::usage, "optimizer", "parameter " + name + " is " + c10::toString(parameter.scalar_type()),
                "train floating point parameters only");
  }
}

// A zeroed tensor per parameter, all of one dtype in one buffer, each at 64 bytes.
std::vector<at::Tensor> flat_like(const NamedTensors& parameters) {
  std::map<at::ScalarType, std::int64_t> length, offset;
  const auto padded = [](const at::Tensor& t) {
    const auto line = 64 / static_cast<std::int64_t>(t.element_size());
    return (t.numel() + line - 1) / line * line;
  };
  for (const auto& [name, parameter] : parameters) length[parameter.scalar_type()] += padded(parameter);
  std::map<at::ScalarType, at::Tensor> flat;
  const auto device = parameters.empty() ? at::Device(at::kCPU) : parameters.front().second.device();
  for (const auto& [dtype, numel] : length)
    flat[dtype] = at::zeros({numel}, at::TensorOptions().dtype(dtype).device(device));
  std::vector<at::Tensor> views;
  for (const auto& [name, parameter] : parameters) {
    auto& begin = offset[parameter.scalar_type()];
    views.push_back(flat[parameter.scalar_type()]
                        .narrow(0, begin, parameter.numel())
                        .as_strided(parameter.sizes(), parameter.strides()));
    begin += padded(parameter);
  }
  return views;
}

}  // namespace

at::Tensor kernel_gradient(const std::string& name, const at::Tensor& parameter, const at::Tensor& gradient) {
  if (gradient.is_sparse())
    throw Error(ErrorCode::usage, "optimizer", "the gradient of " + name + " is sparse",
                "construct the embedding with sparse(false)");
  if (gradient.scalar_type() != parameter.scalar_type() || gradient.sizes() != parameter.sizes()) {
    throw Error(ErrorCode::usage, "optimizer",
                "the gradient of " + name + " has another dtype or shape than the parameter",
                "leave .grad to backward");
  }
  return gradient.strides() == parameter.strides() ? gradient : at::empty_like(parameter).copy_(gradient);
}

void FusedOptimizer::Lists::clear() {
  for (auto* list : {&parameters, &gradients, &first, &second, &steps}) list->clear();
}

FusedOptimizer::FusedOptimizer(Kind kind, OptimizerOptions options, std::vector<ParameterGroup> groups)
    : kind_(kind), options_(std::move(options)), groups_(std::move(groups)) {
  check_options(kind_, options_);
  std::set<std::string> names;
  std::set<const c10::TensorImpl*> tensors;
  for (auto& group : groups_) {
    for (const auto& [name, parameter] : group.parameters) {
      check_parameter(name, parameter);
      if (!names.insert(name).second)
        throw Error(ErrorCode::usage, "optimizer", "parameter " + name + " is in two groups",
                    "put each parameter into one group");
    }
    // A parameter that the model has under several names is updated once, under the first.
    std::erase_if(group.parameters,
                  [&](const auto& entry) { return !tensors.insert(entry.second.unsafeGetTensorImpl()).second; });
  }
}

void FusedOptimizer::make_moments() {
  if (!moments_.empty()) return;
  at::NoGradGuard no_grad;
  const bool has_first = kind_ == Kind::adamw || options_.momentum != 0;
  for (const auto& group : groups_) {
    const auto first = has_first ? flat_like(group.parameters) : std::vector<at::Tensor>(group.parameters.size());
    const auto second =
        kind_ == Kind::adamw ? flat_like(group.parameters) : std::vector<at::Tensor>(group.parameters.size());
    auto& moments = moments_.emplace_back();
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const auto step = at::TensorOptions().dtype(at::kFloat).device(group.parameters[i].second.device());
      moments.push_back({first[i], second[i], at::zeros({}, step), std::nullopt});
    }
  }
}

void FusedOptimizer::replace_parameters(const Replacement& replacement) {
  for (const auto& moments : moments_) {
    for (const auto& of_parameter : moments) {
      if (of_parameter.step.item<float>() != 0)
        throw Error(ErrorCode::usage, "optimizer", "it has made steps before its state was sharded",
                    "make a new one after distribute");
    }
  }
  replaced_ = groups_;
  for (auto& group : groups_) {
    NamedTensors slices;
    for (const auto& [name, parameter] : group.parameters) {
      if (auto slice = replacement(parameter); slice.numel() > 0) slices.emplace_back(name, std::move(slice));
    }
    group.parameters = std::move(slices);
  }
  moments_.clear();
}

void FusedOptimizer::restore_parameters() {
  if (replaced_.empty()) return;
  groups_ = std::move(replaced_);
  replaced_.clear();
  moments_.clear();
}

void FusedOptimizer::step(double lr) { step_unless({}, lr); }

void FusedOptimizer::step_unless(const at::Tensor& skip, double lr) {
  at::NoGradGuard no_grad;
  make_moments();
  for (std::size_t g = 0; g < groups_.size(); ++g) step_group(g, lr * groups_[g].lr_scale, skip);
}

void FusedOptimizer::step_group(std::size_t index, double lr, const at::Tensor& skip) {
  const auto& group = groups_[index];
  for (auto* kinds : {&known_, &fresh_}) {
    for (auto& [dtype, lists] : *kinds) lists.clear();  // left by a step that threw
  }
  // One call for the parameters that have been updated before, one for those that are new: SGD's first step sets the
  // buffer.
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const auto& [name, parameter] = group.parameters[i];
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    auto& moments = moments_[index][i];
    auto& lists = (kind_ == Kind::sgd && is_fresh(moments) ? fresh_ : known_)[parameter.scalar_type()];
    lists.gradients.push_back(kernel_gradient(name, parameter, gradient));
    lists.parameters.push_back(parameter);
    if (moments.first.defined()) lists.first.push_back(moments.first);
    if (moments.second.defined()) lists.second.push_back(moments.second);
    lists.steps.push_back(moments.step);
    count_step(moments);
  }
  const double weight_decay = weight_decay_of(group);
  for (auto& [dtype, lists] : known_) launch(lists, lr, weight_decay, false, skip);
  for (auto& [dtype, lists] : fresh_) launch(lists, lr, weight_decay, true, skip);
}

UpdateRule FusedOptimizer::rule(Kind kind, const OptimizerOptions& options, double weight_decay, double lr,
                                double step) {
  const auto f32 = [](double value) { return static_cast<float>(value); };
  UpdateRule rule;
  if (kind == Kind::adamw) {
    rule.kind = UpdateRule::Kind::adamw;
    rule.has_first = true;
    rule.keep = f32(1 - lr * weight_decay);
    rule.first_weight = f32(1 - options.beta1);
    rule.beta2 = f32(options.beta2);
    rule.second_weight = f32(1 - options.beta2);
    rule.step_size = f32(lr / (1 - std::pow(options.beta1, step)));
    rule.root_factor = f32(1 / std::sqrt(1 - std::pow(options.beta2, step)));
    rule.eps = f32(options.eps);
  } else {
    rule.has_first = options.momentum != 0;
    rule.nesterov = options.nesterov;
    rule.is_first = step == 1;
    rule.lr = f32(lr);
    rule.weight_decay = f32(weight_decay);
    rule.momentum = f32(options.momentum);
  }
  return rule;
}

std::vector<ElementState> FusedOptimizer::elements(std::string& why_not) {
  for (const auto& group : groups_) {
    for (const auto& [name, parameter] : group.parameters) {
      if (parameter.is_cpu() && parameter.scalar_type() == at::kFloat) continue;
      why_not =
          "parameter " + name + " is " + c10::toString(parameter.scalar_type()) + " on " + parameter.device().str();
      return {};
    }
  }
  make_moments();
  std::vector<ElementState> elements;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto& group = groups_[g];
    // By value: it may outlive this.
    const auto rule_of = [kind = kind_, options = options_, scale = group.lr_scale, decay = weight_decay_of(group)](
                             double lr, double step) { return rule(kind, options, decay, lr * scale, step); };
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const auto& moments = moments_[g][i];
      elements.push_back({group.parameters[i].first, group.parameters[i].second, moments.first, moments.second,
                          moments.step, rule_of});
    }
  }
  return elements;
}

bool FusedOptimizer::is_fresh(Moments& moments) {
  if (moments.step.is_cpu()) return *moments.step.const_data_ptr<float>() == 0;
  if (!moments.fresh) moments.fresh = moments.step.item<float>() == 0;
  return *moments.fresh;
}

void FusedOptimizer::count_step(Moments& moments) {
  moments.fresh = false;
  if (moments.step.is_cpu()) *moments.step.mutable_data_ptr<float>() += 1;  // on a GPU by launch
}

void FusedOptimizer::launch(Lists& lists, double lr, double weight_decay, bool first_step, const at::Tensor& skip) {
  if (lists.parameters.empty()) return;
  if (!lists.steps.front().is_cpu()) at::_foreach_add_(lists.steps, 1);  // one kernel, not one for each parameter
  const auto found_inf = skip.defined() ? std::optional(skip) : std::nullopt;
  if (kind_ == Kind::adamw) {
    at::_fused_adamw_(lists.parameters, lists.gradients, lists.first, lists.second, {}, lists.steps, lr, options_.beta1,
                      options_.beta2, weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
                      /*grad_scale=*/{}, found_inf);
  } else {
    at::_fused_sgd_(lists.parameters, lists.gradients, lists.first, weight_decay, options_.momentum, lr,
                    /*dampening=*/0, options_.nesterov,
                    /*maximize=*/false, first_step, /*grad_scale=*/{}, found_inf);
  }
  // A first step that the device skips leaves the momentum at zero, and the next one, not called the first, adds the
  // gradient to that.
  if (found_inf) at::_foreach_sub_(lists.steps, std::vector<at::Tensor>(lists.steps.size(), skip));
  lists.clear();  // gradients are dropped by zero_grad, not held here
}

NamedTensors FusedOptimizer::state() {
  make_moments();
  NamedTensors state;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::size_t i = 0; i < groups_[g].parameters.size(); ++i) {
      const auto& name = groups_[g].parameters[i].first;
      auto& moments = moments_[g][i];
      moments.fresh.reset();  // a heal or a checkpoint writes into what is handed out here
      if (moments.first.defined())
        state.emplace_back(name + (kind_ == Kind::sgd ? ".momentum_buffer" : ".exp_avg"), moments.first);
      if (moments.second.defined()) state.emplace_back(name + ".exp_avg_sq", moments.second);
      state.emplace_back(name + ".step", moments.step);
    }
  }
  return state;
}

void FusedOptimizer::load_state(const NamedTensors& loaded) {
  at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> values(loaded.begin(), loaded.end());
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;      // all or nothing: checked before the first is written
  const auto is_of_empty = [this](const std::string& name) {  // strategies that shard save nothing of such a parameter
    for (const auto& group : groups_) {
      for (const auto& [parameter, tensor] : group.parameters) {
        if (tensor.numel() == 0 && name.starts_with(parameter + ".")) return true;
      }
    }
    return false;
  };
  for (auto& [name, mine] : state()) {
    const auto found = values.find(name);
    if (found == values.end() && is_of_empty(name)) continue;
    if (found == values.end()) {
      throw Error(ErrorCode::mismatch, "optimizer state", "there is no " + name,
                  "resume with the optimizer that wrote the checkpoint (this one is " + this->name() + ")");
    }
    if (found->second.sizes() != mine.sizes())
      throw Error(ErrorCode::mismatch, "optimizer state", name + " has another shape than the parameter",
                  "resume with the same model");
    copies.emplace_back(mine, found->second);
    values.erase(found);
  }
  if (!values.empty())
    throw Error(ErrorCode::mismatch, "optimizer state", values.begin()->first + " belongs to no parameter of the model",
                "resume with the same model");
  for (auto& [mine, value] : copies) mine.copy_(value);
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<ParameterGroup> groups) {
  if (options.optimizer == "sgd")
    return std::make_unique<FusedOptimizer>(FusedOptimizer::Kind::sgd, options, std::move(groups));
  if (options.optimizer == "adamw")
    return std::make_unique<FusedOptimizer>(FusedOptimizer::Kind::adamw, options, std::move(groups));
  throw Error(ErrorCode::usage, "optimizer", "there is no optimizer '" + options.optimizer + "'", "known: sgd, adamw");
}

}  // namespace troupe
