#include "strategies/mesh/mesh_parameters.hpp"

#include <algorithm>
#include <utility>

#include "strategies/mesh/mesh.hpp"
#include "tensor_io/memory/absent_values.hpp"

namespace troupe {

MeshParameters::~MeshParameters() {
  for (auto& parameter : parameters_) {
    if (parameter.trained) parameter.tensor.remove_hook(parameter.hook);
    if (!parameter.whole.defined()) continue;
    parameter.tensor.mutable_grad() = at::Tensor();
    parameter.tensor.set_data(parameter.whole);
  }
}

void MeshParameters::collect(const torch::nn::Module& model, const std::function<bool(const at::Tensor&)>& trains) {
  for (const auto& item : model.named_parameters()) {
    Parameter parameter;
    parameter.name = item.key();
    parameter.tensor = item.value();
    parameter.sizes = item.value().sizes().vec();
    parameter.trained = trains(item.value());
    if (!by_tensor_.emplace(item.value().unsafeGetTensorImpl(), parameters_.size()).second)
      throw mesh_refused("parameter " + item.key() + " is in the model under two names", "use it through one module");
    if (item.value().scalar_type() != at::kFloat)
      throw mesh_refused("parameter " + item.key() + " is not float32",
                         "a mesh trains float32 parameters; use_amp computes in bf16");
    names_.push_back(item.key());
    by_name_.emplace(item.key(), parameters_.size());
    parameter.whole = parameter.tensor.detach();
    if (parameter.trained)
      parameter.hook = parameter.tensor.register_hook([this, i = parameters_.size()](const at::Tensor&) {
        if (marks_uses_) parameters_[i].used = true;
      });
    parameters_.push_back(std::move(parameter));
  }
}

std::optional<std::size_t> MeshParameters::index_of(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::size_t> MeshParameters::index_of(const at::Tensor& parameter) const {
  const auto found = by_tensor_.find(parameter.unsafeGetTensorImpl());
  return found == by_tensor_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<ParameterLayout> MeshParameters::layout() const {
  std::vector<ParameterLayout> layout;
  for (const auto& p : parameters_) layout.push_back({p.name, p.sizes, p.tensor.scalar_type(), p.trained});
  return layout;
}

void MeshParameters::share(const SharedParameters& parts) {
  for (auto& parameter : parameters_) {
    if (const auto cut = parts.cuts.find(parameter.name); cut != parts.cuts.end()) parameter.cut = cut->second;
    parameter.partial = std::find(parts.partial.begin(), parts.partial.end(), parameter.name) != parts.partial.end();
  }
}

void MeshParameters::find_blocks(const StageCut& cut) {
  for (auto& parameter : parameters_) parameter.block = cut.block_of(parameter.name);
}

std::vector<double> MeshParameters::numel_by_block(const StageCut& cut) const {
  std::vector<double> numel(static_cast<std::size_t>(cut.blocks()), 0);
  for (const auto& parameter : parameters_) {
    if (parameter.block >= 0)
      numel[static_cast<std::size_t>(parameter.block)] += static_cast<double>(parameter.tensor.numel());
  }
  return numel;
}

void MeshParameters::release_other_stages(const StageCut& cut, int rank) {
  torch::NoGradGuard no_grad;
  for (auto& parameter : parameters_) {
    parameter.own = cut.holds(rank, parameter.block);
    if (parameter.own) continue;
    parameter.tensor.mutable_grad() = at::Tensor();
    parameter.tensor.set_data(absent_values(parameter.tensor, "parameter " + parameter.name + " is on stage " +
                                                                  std::to_string(cut.stage_with(parameter.block)) +
                                                                  " of the pipeline, not on this rank"));
  }
}

void MeshParameters::forget_wholes() {
  for (auto& parameter : parameters_) parameter.whole = at::Tensor();
}

NamedTensors MeshParameters::held() const {
  NamedTensors tensors;
  for (const auto& parameter : parameters_) {
    if (parameter.own) tensors.emplace_back(parameter.name, parameter.tensor.detach());
  }
  return tensors;
}

std::map<std::string, ParameterCut> MeshParameters::cuts() const {
  std::map<std::string, ParameterCut> cuts;
  for (const auto& parameter : parameters_) {
    if (parameter.cut.dim >= 0) cuts.emplace(parameter.name, parameter.cut);
  }
  return cuts;
}

std::set<std::string> MeshParameters::elsewhere() const {
  std::set<std::string> names;
  for (const auto& parameter : parameters_) {
    if (!parameter.own) names.insert(parameter.name);
  }
  return names;
}

void MeshParameters::clear_uses() {
  for (auto& parameter : parameters_) parameter.used = false;
}

void MeshParameters::mark_used(const at::Tensor& parameter) {
  parameters_[by_tensor_.at(parameter.unsafeGetTensorImpl())].used = true;
}

std::vector<bool> MeshParameters::used() const {
  std::vector<bool> used;
  for (const auto& parameter : parameters_) used.push_back(parameter.used);
  return used;
}

}  // namespace troupe
