#include "tensor_io/optimizer/torch_optimizer.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "tensor_io/base/error.hpp"
#include "tensor_io/layout/named_parameters.hpp"

namespace troupe {
namespace {

/// One value of a parameter's state, whatever the state's type.
struct Slot {
  std::string name;
  bool is_scalar = false;
  bool is_optional = false;  // undefined where the optimizer's options don't ask for it
  std::function<at::Tensor()> read;
  std::function<void(const at::Tensor&)> write;
};

template <class State>
Slot step_slot(State& state) {
  // f32 as in PyTorch and in FusedOptimizer, so that their checkpoints are alike.
  return {"step", true, false, [&state] { return torch::tensor(static_cast<float>(state.step())); },
          [&state](const at::Tensor& value) { state.step(static_cast<std::int64_t>(value.item<double>())); }};
}

template <class State>
Slot tensor_slot(const char* name, State& state, at::Tensor& (State::*member)() noexcept, bool is_optional = false) {
  return {name, false, is_optional, [&state, member] { return (state.*member)(); },
          [&state, member](const at::Tensor& value) { (state.*member)() = value; }};
}

template <class State>
std::vector<Slot> adam_slots(State& s) {
  return {step_slot(s), tensor_slot("exp_avg", s, &State::exp_avg), tensor_slot("exp_avg_sq", s, &State::exp_avg_sq),
          tensor_slot("max_exp_avg_sq", s, &State::max_exp_avg_sq, true)};
}

std::vector<Slot> slots(torch::optim::OptimizerParamState& state) {
  using namespace torch::optim;
  if (auto* s = dynamic_cast<SGDParamState*>(&state))
    return {tensor_slot("momentum_buffer", *s, &SGDParamState::momentum_buffer)};
  if (auto* s = dynamic_cast<AdamParamState*>(&state)) return adam_slots(*s);
  if (auto* s = dynamic_cast<AdamWParamState*>(&state)) return adam_slots(*s);
  if (auto* s = dynamic_cast<RMSpropParamState*>(&state)) {
    return {step_slot(*s), tensor_slot("square_avg", *s, &RMSpropParamState::square_avg),
            tensor_slot("momentum_buffer", *s, &RMSpropParamState::momentum_buffer, true),
            tensor_slot("grad_avg", *s, &RMSpropParamState::grad_avg, true)};
  }
  if (auto* s = dynamic_cast<AdagradParamState*>(&state))
    return {step_slot(*s), tensor_slot("sum", *s, &AdagradParamState::sum)};
  throw Error(ErrorCode::internal, "optimizer state",
              "a torch::optim optimizer that was accepted keeps a state of an unknown type");
}

/// An empty state of the optimizer's kind, nullptr for an optimizer that Troupe does not know.
std::unique_ptr<torch::optim::OptimizerParamState> fresh_state(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  if (dynamic_cast<const SGD*>(&optimizer)) return std::make_unique<SGDParamState>();
  if (dynamic_cast<const Adam*>(&optimizer)) return std::make_unique<AdamParamState>();
  if (dynamic_cast<const AdamW*>(&optimizer)) return std::make_unique<AdamWParamState>();
  if (dynamic_cast<const RMSprop*>(&optimizer)) return std::make_unique<RMSpropParamState>();
  if (dynamic_cast<const Adagrad*>(&optimizer)) return std::make_unique<AdagradParamState>();
  return nullptr;
}

constexpr auto kKnown = "use SGD, Adam, AdamW, RMSprop or Adagrad, or write a troupe::Optimizer";

/// Moves what `values` holds of one parameter into `state`. False where it holds nothing.
bool take(const std::string& parameter_name, const at::Tensor& parameter, torch::optim::OptimizerParamState& state,
          std::map<std::string, at::Tensor>& values) {
  std::string missing;
  bool any = false;
  for (const auto& slot : slots(state)) {
    const auto name = parameter_name + "." + slot.name;
    const auto found = values.find(name);
    if (found == values.end()) {
      if (!slot.is_optional) missing = name;
      continue;
    }
    const auto& value = found->second;
    if (slot.is_scalar ? value.numel() != 1 : value.sizes() != parameter.sizes()) {
      throw Error(ErrorCode::mismatch, "optimizer state", name + " has another shape than the parameter",
                  "resume with the same model");
    }
    slot.write(slot.is_scalar ? value : at::empty_like(parameter).copy_(value));
    values.erase(found);
    any = true;
  }
  if (any && !missing.empty())
    throw Error(ErrorCode::mismatch, "optimizer state", "there is no " + missing,
                "resume with the optimizer that wrote the checkpoint");
  return any;
}

}  // namespace

TorchOptimizer::TorchOptimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& model)
    : optimizer_(optimizer) {
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw Error(
        ErrorCode::usage, "optimizer",
        "LBFGS needs a closure: it runs forward and backward again inside its step, which no distributed step can",
        kKnown);
  }
  if (!fresh_state(optimizer))
    throw Error(ErrorCode::usage, "optimizer", "this torch::optim optimizer's state can't be saved by parameter name",
                kKnown);
  groups_ = named_groups(model);
}

std::vector<ParameterGroup> TorchOptimizer::named_groups(const torch::nn::Module& model) const {
  std::map<const void*, std::string> names;
  for (const auto& [name, parameter] : unique_parameters(model)) names[parameter.unsafeGetTensorImpl()] = name;
  std::set<const void*> slices, taken;
  for (const auto& group : groups_) {
    for (const auto& [name, parameter] : group.parameters) slices.insert(parameter.unsafeGetTensorImpl());
  }
  std::vector<ParameterGroup> groups;
  for (auto& group : optimizer_.param_groups()) {
    auto& named = groups.emplace_back();
    // Listed twice it would be stepped twice: a tensor of two names that came by LibTorch's parameters().
    std::erase_if(group.params(), [&](const at::Tensor& p) { return !taken.insert(p.unsafeGetTensorImpl()).second; });
    for (const auto& parameter : group.params()) {
      const auto name = names.find(parameter.unsafeGetTensorImpl());
      if (name != names.end()) {
        named.parameters.emplace_back(name->second, parameter);
        continue;
      }
      const bool is_slice = slices.contains(parameter.unsafeGetTensorImpl());
      throw Error(ErrorCode::usage, "optimizer",
                  is_slice ? "its groups have changed after the strategy gave it this rank's slices"
                           : "it holds a parameter that the distributed model does not have",
                  is_slice ? "give it all groups before the first step, or make a new optimizer"
                           : "construct it from model->parameters()");
    }
  }
  return groups;
}

bool TorchOptimizer::has_groups() const {
  const auto same = [](const ParameterGroup& ours, const torch::optim::OptimizerParamGroup& theirs) {
    return std::ranges::equal(ours.parameters, theirs.params(), [](const auto& entry, const at::Tensor& parameter) {
      return entry.second.is_same(parameter);
    });
  };
  return std::ranges::equal(groups_, optimizer_.param_groups(), same);
}

void TorchOptimizer::follow(const torch::nn::Module& model) {
  if (has_groups()) return;
  auto groups = named_groups(model);
  if (!replaced_.empty()) take_new_id();
  groups_ = std::move(groups);
  replaced_.clear();
}

void TorchOptimizer::step(double factor) {
  if (!has_groups())
    throw Error(ErrorCode::usage, "optimizer", "its groups have changed since the last step",
                "give it all groups before the first step");
  std::vector<double> own;
  for (auto& group : optimizer_.param_groups()) {
    own.push_back(group.options().get_lr());
    group.options().set_lr(own.back() * factor);
  }
  optimizer_.step();
  for (std::size_t g = 0; g < own.size(); ++g) optimizer_.param_groups()[g].options().set_lr(own[g]);
}

double TorchOptimizer::first_rate(double factor) const {
  return optimizer_.param_groups().empty() ? factor : optimizer_.param_groups().front().options().get_lr() * factor;
}

void TorchOptimizer::replace_parameters(const Replacement& replacement) {
  torch::NoGradGuard no_grad;
  auto* adagrad = dynamic_cast<torch::optim::Adagrad*>(&optimizer_);
  if (!optimizer_.state().empty() && adagrad == nullptr)
    throw Error(ErrorCode::usage, "optimizer", "it has made steps before its state was sharded",
                "make a new one after distribute");
  std::map<void*, std::unique_ptr<torch::optim::OptimizerParamState>> states;
  std::set<void*> taken;
  replaced_ = groups_;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    NamedTensors slices;
    std::vector<at::Tensor> leaves;
    for (const auto& [name, parameter] : groups_[g].parameters) {
      auto slice = replacement(parameter);
      if (slice.numel() == 0 || !taken.insert(slice.unsafeGetTensorImpl()).second)
        continue;                // under another name already
      if (adagrad != nullptr) {  // it fills its sums at construction, all with one value
        auto state = std::make_unique<torch::optim::AdagradParamState>();
        auto& old =
            static_cast<torch::optim::AdagradParamState&>(*optimizer_.state().at(parameter.unsafeGetTensorImpl()));
        if (old.step() != 0)
          throw Error(ErrorCode::usage, "optimizer", "it has made steps before its state was sharded",
                      "make a new one after distribute");
        adagrad_start_ = old.sum().flatten()[0].item<double>();
        state->sum(at::full_like(slice.detach(), adagrad_start_));
        states[slice.unsafeGetTensorImpl()] = std::move(state);
      }
      leaves.push_back(slice);
      slices.emplace_back(name, std::move(slice));
    }
    groups_[g].parameters = std::move(slices);
    optimizer_.param_groups()[g].params() = std::move(leaves);
  }
  optimizer_.state().clear();
  for (auto& [key, state] : states) optimizer_.state()[key] = std::move(state);
}

void TorchOptimizer::restore_parameters() {
  if (replaced_.empty()) return;
  groups_ = std::move(replaced_);
  replaced_.clear();
  optimizer_.state().clear();
  const bool adagrad = dynamic_cast<torch::optim::Adagrad*>(&optimizer_) != nullptr;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::vector<at::Tensor> parameters;
    for (const auto& [name, parameter] : groups_[g].parameters) {
      parameters.push_back(parameter);
      if (!adagrad) continue;
      auto state = std::make_unique<torch::optim::AdagradParamState>();
      state->sum(at::full({1}, adagrad_start_));  // replace_parameters gives it its shape
      optimizer_.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
    optimizer_.param_groups()[g].params() = std::move(parameters);
  }
}

NamedTensors TorchOptimizer::state() {
  NamedTensors named;
  for (const auto& group : groups_) {
    for (const auto& [name, parameter] : group.parameters) {
      const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer_.state().end()) continue;
      for (const auto& slot : slots(*found->second)) {
        if (auto value = slot.read(); value.defined()) named.emplace_back(name + "." + slot.name, value);
      }
    }
  }
  return named;
}

void TorchOptimizer::load_state(const NamedTensors& loaded) {
  torch::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> values(loaded.begin(), loaded.end());
  std::map<void*, std::unique_ptr<torch::optim::OptimizerParamState>> states;
  const bool always_there = dynamic_cast<torch::optim::Adagrad*>(&optimizer_) != nullptr;  // made at construction
  for (const auto& group : groups_) {
    for (const auto& [name, parameter] : group.parameters) {
      auto state = fresh_state(optimizer_);
      if (take(name, parameter.detach(), *state, values)) {
        states[parameter.unsafeGetTensorImpl()] = std::move(state);
      } else if (always_there && parameter.numel() == 0) {  // strategies that shard save nothing of it
        states[parameter.unsafeGetTensorImpl()] = std::move(optimizer_.state()[parameter.unsafeGetTensorImpl()]);
      } else if (always_there) {
        throw Error(ErrorCode::mismatch, "optimizer state", "there is no " + name + ".sum",
                    "resume with the optimizer that wrote the checkpoint");
      }
    }
  }
  if (!values.empty())
    throw Error(ErrorCode::mismatch, "optimizer state",
                values.begin()->first + " belongs to no parameter of this optimizer",
                "resume with the optimizer that wrote it");
  optimizer_.state().clear();
  for (auto& [key, state] : states) optimizer_.state()[key] = std::move(state);
}

}  // namespace troupe
