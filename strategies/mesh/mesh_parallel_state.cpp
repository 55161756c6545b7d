// Parts of a model on a mesh as checkpoints have them: each parameter once, whole, under its full name.
#include "strategies/mesh/mesh_parallel.hpp"
#include "strategies/mesh/partitioned_state.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"

namespace troupe {
namespace {

constexpr std::string_view kOptimizerPrefix = "optimizer.";

}  // namespace

std::map<std::string, std::string> MeshParallel::state() {
  std::string text;
  for (const int border : cut_.borders()) text += (text.empty() ? "" : ",") + std::to_string(border);
  return {{"mesh", mesh_.to_string()}, {"pipeline.stages", text}};
}

// What several ranks have alike the copies share out; what is cut each rank of a copy writes, the copies in turn.
std::vector<TensorPart> MeshParallel::state_parts(Optimizer& optimizer, int, int) {
  torch::NoGradGuard no_grad;
  if (!cut_.is_cut()) cut_by({});
  shard_optimizer(optimizer);
  std::vector<TensorPart> parts;
  NamedTensors alike;
  std::size_t turn = 0;
  const auto add = [&](const std::string& name, const MeshParameters::Parameter& parameter, const at::Tensor& value) {
    if (!parameter.own || !counts(parameter)) return;
    if (value.dim() > 0 && parameter.cut.dim >= 0) {
      if (static_cast<int>(turn++ % static_cast<std::size_t>(mesh_.dp)) == place_.dp)
        parts.push_back(part_of_cut(name, value, parameter.sizes, parameter.cut, *groups_.tp));
    } else if (place_.tp == 0) {  // a moment that is one number is not cut
      alike.emplace_back(name, value.detach());
    }
  };
  for (const auto& parameter : parameters_.all()) add("model." + parameter.name, parameter, parameter.tensor);
  for (const auto& [name, value] : optimizer.state())
    add("optimizer." + name, parameters_.all()[parameters_.index_of(name.substr(0, name.rfind('.'))).value()], value);
  NamedTensors buffers;
  for (const auto& item : model_->named_buffers()) {
    if (place_.tp == 0 && has_buffer(item.key())) buffers.emplace_back("model." + item.key(), item.value());
  }
  for (auto& part : parts_for(alike, place_.dp, mesh_.dp)) parts.push_back(std::move(part));
  for (auto& part : parts_of_first(buffers, place_.dp)) parts.push_back(std::move(part));
  return parts;
}

void MeshParallel::read_state(const StateReader& state, Optimizer& optimizer) {
  torch::NoGradGuard no_grad;
  if (!cut_.is_cut()) {  // to be measured: as it was cut for the checkpoint is not known, and the state has to lie
                         // somewhere
    cut_by({});
  }
  shard_optimizer(optimizer);
  check_saved_model(state, parameters_, *model_);
  for (auto& item : model_->named_buffers()) state.read("model." + item.key(), item.value());
  const CutStateReader own(state, parameters_.cuts(), parameters_.elsewhere());
  NamedTensors moments;
  std::set<std::string> held;
  for (const auto& parameter : parameters_.all()) {
    if (!parameter.own) continue;
    held.insert(parameter.name);
    own.read("model." + parameter.name, parameter.tensor.detach());
  }
  for (const auto& [name, entry] : own.entries()) {
    if (name.starts_with(kOptimizerPrefix) && held.contains(parameter_in(name)))
      moments.emplace_back(name.substr(kOptimizerPrefix.size()), own.read(name));
  }
  optimizer.load_state(moments);
}

}  // namespace troupe
