#include "tensor_io/torch_optimizer.hpp"

#include <functional>
#include <map>

#include "tensor_io/error.hpp"

namespace troupe {
namespace {

/// The tensors and counters of one parameter's state, whatever its type, as (name, read, write).
struct Slot {
  std::string name;
  std::function<at::Tensor()> read;
  std::function<void(const at::Tensor&)> write;
};

template <class State>
Slot step_slot(State& state) {
  return {"step", [&state] { return torch::tensor(state.step(), torch::kInt64); },
          [&state](const at::Tensor& value) { state.step(value.item<std::int64_t>()); }};
}

template <class State>
State* typed(torch::optim::OptimizerParamState* state) {
  return dynamic_cast<State*>(state);
}

std::vector<Slot> slots(torch::optim::OptimizerParamState* state) {
  using namespace torch::optim;
  const auto tensor = [](const char* name, auto* owner, auto get) {
    return Slot{name, [owner, get] { return get(*owner); }, [owner, get](const at::Tensor& value) { get(*owner) = value.clone(); }};
  };
  std::vector<Slot> list;
  if (auto* sgd = typed<SGDParamState>(state)) {
    list.push_back(tensor("momentum_buffer", sgd, [](SGDParamState& s) -> at::Tensor& { return s.momentum_buffer(); }));
  } else if (auto* adam = typed<AdamParamState>(state)) {
    list.push_back(step_slot(*adam));
    list.push_back(tensor("exp_avg", adam, [](AdamParamState& s) -> at::Tensor& { return s.exp_avg(); }));
    list.push_back(tensor("exp_avg_sq", adam, [](AdamParamState& s) -> at::Tensor& { return s.exp_avg_sq(); }));
    list.push_back(tensor("max_exp_avg_sq", adam, [](AdamParamState& s) -> at::Tensor& { return s.max_exp_avg_sq(); }));
  } else if (auto* adamw = typed<AdamWParamState>(state)) {
    list.push_back(step_slot(*adamw));
    list.push_back(tensor("exp_avg", adamw, [](AdamWParamState& s) -> at::Tensor& { return s.exp_avg(); }));
    list.push_back(tensor("exp_avg_sq", adamw, [](AdamWParamState& s) -> at::Tensor& { return s.exp_avg_sq(); }));
    list.push_back(tensor("max_exp_avg_sq", adamw, [](AdamWParamState& s) -> at::Tensor& { return s.max_exp_avg_sq(); }));
  } else if (auto* rms = typed<RMSpropParamState>(state)) {
    list.push_back(step_slot(*rms));
    list.push_back(tensor("square_avg", rms, [](RMSpropParamState& s) -> at::Tensor& { return s.square_avg(); }));
    list.push_back(tensor("momentum_buffer", rms, [](RMSpropParamState& s) -> at::Tensor& { return s.momentum_buffer(); }));
    list.push_back(tensor("grad_avg", rms, [](RMSpropParamState& s) -> at::Tensor& { return s.grad_avg(); }));
  } else if (auto* adagrad = typed<AdagradParamState>(state)) {
    list.push_back(step_slot(*adagrad));
    list.push_back(tensor("sum", adagrad, [](AdagradParamState& s) -> at::Tensor& { return s.sum(); }));
  } else {
    throw Error(ErrorCode::usage, "optimizer state", "this torch::optim optimizer keeps a state that Troupe does not know",
                "use SGD, Adam, AdamW, RMSprop or Adagrad");
  }
  return list;
}

std::unique_ptr<torch::optim::OptimizerParamState> fresh_state(torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  if (dynamic_cast<SGD*>(&optimizer)) return std::make_unique<SGDParamState>();
  if (dynamic_cast<Adam*>(&optimizer)) return std::make_unique<AdamParamState>();
  if (dynamic_cast<AdamW*>(&optimizer)) return std::make_unique<AdamWParamState>();
  if (dynamic_cast<RMSprop*>(&optimizer)) return std::make_unique<RMSpropParamState>();
  if (dynamic_cast<Adagrad*>(&optimizer)) return std::make_unique<AdagradParamState>();
  throw Error(ErrorCode::usage, "optimizer state", "this torch::optim optimizer keeps a state that Troupe does not know",
              "use SGD, Adam, AdamW, RMSprop or Adagrad");
}

}  // namespace

TorchOptimizer::TorchOptimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& model) : optimizer_(optimizer) {
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw Error(ErrorCode::usage, "optimizer", "LBFGS runs forward and backward again inside its step, which no distributed step can",
                "use SGD, Adam, AdamW, RMSprop or Adagrad");
  }
  std::map<void*, std::string> names;
  for (const auto& item : model.named_parameters()) names[item.value().unsafeGetTensorImpl()] = item.key();
  for (const auto& group : optimizer.param_groups()) {
    auto& named = groups_.emplace_back();
    for (const auto& parameter : group.params()) {
      const auto name = names.find(parameter.unsafeGetTensorImpl());
      if (name == names.end())
        throw Error(ErrorCode::usage, "optimizer", "it holds a parameter that the distributed model does not have",
                    "construct it from model->parameters()");
      named.parameters.emplace_back(name->second, parameter);
    }
  }
}

void TorchOptimizer::step(double lr) {
  for (auto& group : optimizer_.param_groups()) group.options().set_lr(lr);
  optimizer_.step();
}

NamedTensors TorchOptimizer::state() {
  NamedTensors named;
  for (const auto& group : groups_) {
    for (const auto& [name, parameter] : group.parameters) {
      const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer_.state().end()) continue;
      for (const auto& slot : slots(found->second.get())) {
        if (auto value = slot.read(); value.defined()) named.emplace_back(name + "." + slot.name, value);
      }
    }
  }
  return named;
}

void TorchOptimizer::load_state(const NamedTensors& loaded) {
  std::map<std::string, at::Tensor> values(loaded.begin(), loaded.end());
  for (const auto& group : groups_) {
    for (const auto& [name, parameter] : group.parameters) {
      auto state = fresh_state(optimizer_);
      bool any = false;
      for (const auto& slot : slots(state.get())) {
        const auto found = values.find(name + "." + slot.name);
        if (found == values.end()) continue;
        slot.write(found->second);
        values.erase(found);
        any = true;
      }
      if (any) optimizer_.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
  }
  if (!values.empty())
    throw Error(ErrorCode::mismatch, "optimizer state", values.begin()->first + " belongs to no parameter of this optimizer",
                "resume with the optimizer that wrote it");
}

}  // namespace troupe
