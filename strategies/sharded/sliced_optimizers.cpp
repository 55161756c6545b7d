#include "strategies/sharded/sliced_optimizers.hpp"

#include <algorithm>

namespace troupe {

void SlicedOptimizers::slice(Optimizer& optimizer, const ShardedParameters& parameters) {
  auto& placing = sliced_[optimizer.id()];
  const auto& groups = optimizer.groups();
  const bool has_slices = std::none_of(groups.begin(), groups.end(), [&](const auto& group) {
    return std::any_of(group.parameters.begin(), group.parameters.end(),
                       [&](const auto& entry) { return parameters.has(entry.second); });
  });
  if (placing == placings_ && has_slices) return;
  placing = placings_;
  optimizer.restore_parameters();  // it may have slices of another cut
  optimizer.replace_parameters([&](const at::Tensor& parameter) {
    if (elsewhere_.contains(parameter.unsafeGetTensorImpl()))
      return at::empty({0}, parameter.options().requires_grad(false));
    auto slice = parameters.slice_of(parameter);
    if (!slice.defined()) {
      throw Error(ErrorCode::usage, "optimizer", "it holds a parameter that the distributed model does not have",
                  "construct it from the model's parameters");
    }
    return slice;
  });
  if (restored_.empty()) return;
  NamedTensors moments;
  for (const auto& group : optimizer.groups()) {
    for (const auto& [name, slice] : group.parameters) {
      const auto found = restored_.extract(name);
      if (found.empty()) continue;
      for (const auto& [slot, value] : found.mapped()) moments.emplace_back(name + "." + slot, value);
    }
  }
  optimizer.load_state(moments);
}

}  // namespace troupe
