#include "actors/strategy/saved_state.hpp"

#include <algorithm>

#include "actors/strategy/strategy.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/state_matching.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"

namespace troupe {

NamedTensors replicated_state(Strategy& strategy, Optimizer& optimizer) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : strategy.replicated_tensors()) tensors.emplace_back("model." + name, tensor);
  for (const auto& [name, tensor] : optimizer.state()) tensors.emplace_back("optimizer." + name, tensor);
  for (const auto& [name, tensor] : strategy.strategy_tensors()) tensors.emplace_back("strategy." + name, tensor);
  return tensors;
}

std::vector<TensorPart> ReplicatedState::state_parts(Optimizer& optimizer, int rank, int world_size) {
  return parts_for(replicated_state(strategy_, optimizer), rank, world_size);
}

void ReplicatedState::read_state(const StateReader& state, Optimizer& optimizer) {
  torch::NoGradGuard no_grad;
  NamedTensors live;
  for (const auto& [name, tensor] : strategy_.replicated_tensors()) live.emplace_back("model." + name, tensor.detach());
  const auto difference = compare_state(outlines(state, "model."), live);
  if (!difference.empty()) throw Error(ErrorCode::mismatch, "resume", "loading the model: " + difference.describe());
  // In the order of the files, so that each piece of them is read once.
  std::sort(live.begin(), live.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [name, tensor] : live) state.read(name, tensor);
  // A checkpoint of another strategy has none of these.
  for (const auto& [name, tensor] : strategy_.strategy_tensors()) {
    const auto found = state.entries().find("strategy." + name);
    if (found != state.entries().end() && tensor.sizes() == found->second.shape &&
        tensor.scalar_type() == found->second.dtype)
      state.read("strategy." + name, tensor.detach());
  }
  // An optimizer that keeps no state before its first step gets its names from the file.
  constexpr std::string_view kPrefix = "optimizer.";
  const auto present = optimizer.state();
  const std::map<std::string, at::Tensor> mine(present.begin(), present.end());
  NamedTensors moments;
  for (const auto& [name, entry] : state.entries()) {
    if (!name.starts_with(kPrefix)) continue;
    const auto moment = name.substr(kPrefix.size());
    // What is as large as a parameter goes to where it belongs; load_state sees that it is there.
    const auto found = mine.find(moment);
    const bool fits = found != mine.end() && !entry.shape.empty() && found->second.sizes() == entry.shape &&
                      found->second.scalar_type() == entry.dtype;
    if (fits) state.read(name, found->second.detach());
    moments.emplace_back(moment, fits ? found->second : state.read(name));
  }
  optimizer.load_state(moments);
}

}  // namespace troupe
