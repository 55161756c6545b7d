#pragma once
// The reference's model with its optimizer. Includes nothing of Troupe.
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/differential/dropout_reference.hpp"
#include "tests/differential/net.hpp"
#include "tests/differential/optimizers.hpp"
#include "tests/differential/outcome.hpp"

namespace troupe::differential {

/// As Python's. LibTorch's own is a product of the transposed weight, which autocast casts anew for each use.
struct ReferenceLinearImpl : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
};
TORCH_MODULE(ReferenceLinear);

/// LibTorch's own layers. Dropout's masks are the reference's, by the formula that docs/numbers.md gives.
struct TorchKit {
  using Linear = ReferenceLinear;
  using Embedding = torch::nn::Embedding;
  using BatchNorm = torch::nn::BatchNorm1d;
  using Dropout = ReferenceDropout;
  template <class Impl>
  using Block = torch::nn::ModuleHolder<Impl>;
  static at::Tensor scores(Embedding& words, const at::Tensor& x) { return at::linear(x, words->weight); }
};
using ReferenceNet = NetImpl<TorchKit>;

/// Each parameter once, by its first name.
inline std::vector<std::pair<std::string, at::Tensor>> parameters_of(const torch::nn::Module& net) {
  std::vector<std::pair<std::string, at::Tensor>> unique;
  std::set<const void*> seen;
  for (const auto& item : net.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) unique.emplace_back(item.key(), item.value());
  }
  return unique;
}

/// The tensors of a parameter's state, by their names in PyTorch.
inline std::vector<std::pair<const char*, at::Tensor*>> slots_of(optim::OptimizerParamState& of) {
  std::vector<std::pair<const char*, at::Tensor*>> slots;
  if (auto* s = dynamic_cast<optim::SGDParamState*>(&of)) slots = {{"momentum_buffer", &s->momentum_buffer()}};
  const auto adam = [&](auto* s) {
    if (s != nullptr)
      slots = {{"exp_avg", &s->exp_avg()}, {"exp_avg_sq", &s->exp_avg_sq()}, {"max_exp_avg_sq", &s->max_exp_avg_sq()}};
  };
  adam(dynamic_cast<optim::AdamParamState*>(&of));
  adam(dynamic_cast<optim::AdamWParamState*>(&of));
  if (auto* s = dynamic_cast<optim::RMSpropParamState*>(&of))
    slots = {
        {"square_avg", &s->square_avg()}, {"momentum_buffer", &s->momentum_buffer()}, {"grad_avg", &s->grad_avg()}};
  if (auto* s = dynamic_cast<optim::AdagradParamState*>(&of)) slots = {{"sum", &s->sum()}};
  std::erase_if(slots, [](const auto& slot) { return !slot.second->defined(); });
  return slots;
}

/// Empty for an optimizer that does not count.
inline std::optional<std::int64_t> step_of(const optim::OptimizerParamState& of) {
  if (const auto* s = dynamic_cast<const optim::AdamParamState*>(&of)) return s->step();
  if (const auto* s = dynamic_cast<const optim::AdamWParamState*>(&of)) return s->step();
  if (const auto* s = dynamic_cast<const optim::RMSpropParamState*>(&of)) return s->step();
  if (const auto* s = dynamic_cast<const optim::AdagradParamState*>(&of)) return s->step();
  return {};
}

/// A model with its optimizer: one in all where gradients are averaged, one for each rank where they are not.
struct Replica {
  explicit Replica(const Job& job) : net(std::make_shared<ReferenceNet>(job)) {
    fill(*net, job);
    place_reference_dropout(*net, job.seed);
    freeze(*net, job, 0);
    parameters = parameters_of(*net);
    optimizer = torch_optimizer(job, parameters);
    for (const auto& group : optimizer->param_groups()) base.push_back(group.options().get_lr());
  }

  void step(double factor) {
    for (std::size_t g = 0; g < base.size(); ++g) optimizer->param_groups()[g].options().set_lr(base[g] * factor);
    optimizer->step();
  }

  /// Of parameter p; null: it has none.
  optim::OptimizerParamState* state_of(std::size_t p) const {
    const auto found = optimizer->state().find(parameters[p].second.unsafeGetTensorImpl());
    return found == optimizer->state().end() ? nullptr : found->second.get();
  }

  /// Parameters, buffers and optimizer state become the other's.
  void copy(const Replica& other) {
    torch::NoGradGuard no_grad;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      parameters[p].second.copy_(other.parameters[p].second);
      const auto* state = other.state_of(p);
      if (state == nullptr) {
        optimizer->state().erase(parameters[p].second.unsafeGetTensorImpl());
        continue;
      }
      auto mine = state->clone();
      for (const auto& [name, tensor] : slots_of(*mine)) *tensor = tensor->clone();
      optimizer->state()[parameters[p].second.unsafeGetTensorImpl()] = std::move(mine);
    }
    copy_buffers(*other.net);
  }
  void take_model(const Replica& other) {
    torch::NoGradGuard no_grad;
    for (std::size_t p = 0; p < parameters.size(); ++p) parameters[p].second.copy_(other.parameters[p].second);
    copy_buffers(*other.net);
  }
  void copy_buffers(const ReferenceNet& from) {
    torch::NoGradGuard no_grad;
    auto mine = net->named_buffers();
    for (const auto& item : from.named_buffers()) mine[item.key()].copy_(item.value());
  }

  std::vector<at::Tensor> copies_of_buffers() const {
    std::vector<at::Tensor> copies;
    for (const auto& buffer : net->buffers()) copies.push_back(buffer.clone());
    return copies;
  }
  void put_buffers_back(const std::vector<at::Tensor>& copies) {
    torch::NoGradGuard no_grad;
    auto now = net->buffers();
    for (std::size_t b = 0; b < copies.size(); ++b) now[b].copy_(copies[b]);
  }

  /// The gradient's norm, which is at most `most` from then on. 0: does nothing.
  double clip(double most) {
    if (most == 0) return 0;
    double squares = 0;
    for (const auto& [name, parameter] : parameters) {
      if (parameter.grad().defined()) squares += parameter.grad().to(at::kDouble).pow(2).sum().item<double>();
    }
    const double norm = std::sqrt(squares);
    if (norm + 1e-6 > most) {
      for (const auto& [name, parameter] : parameters) {
        if (parameter.grad().defined()) parameter.mutable_grad().mul_(most / (norm + 1e-6));
      }
    }
    return norm;
  }

  std::shared_ptr<ReferenceNet> net;
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::vector<double> base;
};

/// `mean`, a tensor of the first replica, becomes the mean over all; `of` gives another one's.
template <class Of>
void average(at::Tensor mean, const std::vector<Replica>& replicas, const Of& of) {
  torch::NoGradGuard no_grad;
  if (!mean.is_floating_point()) return;
  for (std::size_t r = 1; r < replicas.size(); ++r) mean.add_(of(replicas[r]));
  mean.div_(static_cast<double>(replicas.size()));
}

/// The first replica's parameters and buffers become the mean over all.
inline void average_models_into_first(std::vector<Replica>& replicas) {
  const auto& first = replicas.front();
  for (std::size_t p = 0; p < first.parameters.size(); ++p)
    average(first.parameters[p].second, replicas, [p](const auto& other) { return other.parameters[p].second; });
  std::set<const void*> seen;
  for (const auto& item : first.net->named_buffers()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second)
      average(item.value(), replicas, [&](const auto& other) { return other.net->named_buffers()[item.key()]; });
  }
}

/// ... and its optimizer's state.
inline void average_optimizers_into_first(std::vector<Replica>& replicas) {
  for (std::size_t p = 0; p < replicas.front().parameters.size(); ++p) {
    auto* state = replicas.front().state_of(p);
    if (state == nullptr) continue;
    const auto slots = slots_of(*state);
    for (std::size_t s = 0; s < slots.size(); ++s)
      average(*slots[s].second, replicas, [&](const auto& other) { return *slots_of(*other.state_of(p))[s].second; });
  }
}

/// By the names of checkpoints: the means over all, and the first one's optimizer.
inline State state_of(const std::vector<Replica>& replicas) {
  State state;
  const auto& first = replicas.front();
  for (std::size_t p = 0; p < first.parameters.size(); ++p) {
    auto& mean = state["model." + first.parameters[p].first] = first.parameters[p].second.detach().clone();
    average(mean, replicas, [p](const auto& other) { return other.parameters[p].second; });
    auto* of = first.state_of(p);
    if (of == nullptr) continue;
    const auto name = "optimizer." + first.parameters[p].first + ".";
    for (const auto& [slot, tensor] : slots_of(*of)) state[name + slot] = tensor->clone();
    if (const auto steps = step_of(*of)) state[name + "step"] = torch::tensor(static_cast<float>(*steps));
  }
  std::set<const void*> seen;
  for (const auto& item : first.net->named_buffers()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    auto& mean = state["model." + item.key()] = item.value().clone();
    average(mean, replicas, [&](const auto& other) { return other.net->named_buffers()[item.key()]; });
  }
  return state;
}

/// The gradients of each rank, kept apart for what travels between ranks.
class GradientsApart {
 public:
  /// Adds the replica's to those of `rank` of `ranks`, and leaves it without.
  void take(Replica& replica, int rank, int ranks) {
    of_.resize(replica.parameters.size());
    for (std::size_t p = 0; p < of_.size(); ++p) {
      auto& gradient = replica.parameters[p].second.mutable_grad();
      if (!gradient.defined()) continue;
      while (static_cast<int>(of_[p].size()) < ranks)
        of_[p].push_back(at::zeros_like(replica.parameters[p].second.detach()));
      of_[p][static_cast<std::size_t>(rank)] += gradient;
      gradient.reset();
    }
  }
  /// The replica's become what `reduce(name, parameter, gradients by rank)` makes of them.
  template <class Reduce>
  void give_back(Replica& replica, const Reduce& reduce) {
    for (std::size_t p = 0; p < of_.size(); ++p) {
      auto& [name, parameter] = replica.parameters[p];
      if (!of_[p].empty()) parameter.mutable_grad() = reduce(name, parameter, of_[p]);
    }
    of_.clear();
  }

 private:
  std::vector<std::vector<at::Tensor>> of_;  // by parameter and rank
};

}  // namespace troupe::differential
