#include "launch/model/gathered_model.hpp"

#include <algorithm>
#include <map>

#include "actors/strategy/saved_state.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"
#include "tensor_io/files/bounded_json.hpp"

namespace troupe {
namespace {

nlohmann::json to_json(const std::vector<TensorPart>& parts) {
  auto list = nlohmann::json::array();
  for (const auto& part : parts)
    list.push_back({{"name", part.name},
                    {"dtype", static_cast<int>(part.dtype)},
                    {"global_shape", part.global_shape},
                    {"offsets", part.offsets},
                    {"shape", part.shape}});
  return list;
}

// Without their values.
std::vector<TensorPart> parts_of(const std::string& text) {
  return read_bounded_json(text, "the parts of the model that a rank has", {}, [](const nlohmann::json& list) {
    std::vector<TensorPart> parts;
    for (const auto& entry : list) {
      TensorPart part;
      entry.at("name").get_to(part.name);
      part.dtype = static_cast<at::ScalarType>(entry.at("dtype").get<int>());
      entry.at("global_shape").get_to(part.global_shape);
      entry.at("offsets").get_to(part.offsets);
      entry.at("shape").get_to(part.shape);
      parts.push_back(std::move(part));
    }
    return parts;
  });
}

}  // namespace

NamedTensors gathered_model(Compute& compute, Optimizer& optimizer, int root) {
  torch::NoGradGuard no_grad;
  auto& communicator = compute.program_communicator();
  const int rank = communicator.rank(), world_size = communicator.world_size();
  if (root < 0 || root >= world_size) {
    throw Error(ErrorCode::usage, "state_dict", "there is no rank " + std::to_string(root),
                "ranks are 0 to " + std::to_string(world_size - 1));
  }
  compute.settle_optimizer(optimizer);
  auto parts = compute.strategy().saved_state().state_parts(optimizer, rank, world_size);
  std::erase_if(parts, [](const TensorPart& part) { return !part.name.starts_with(kModelPrefix); });
  const auto lists = communicator.all_gather_bytes(to_json(parts).dump(), "state_dict");

  NamedTensors whole;
  std::map<std::string, std::size_t> known;
  for (int source = 0; source < world_size; ++source) {
    std::size_t own = 0;
    for (const auto& part : parts_of(lists[static_cast<std::size_t>(source)])) {
      if (rank != root && rank != source) continue;
      if (rank != root) {
        communicator.send(values_of(parts[own++]).contiguous(), root, "state_dict");
        continue;
      }
      const auto name = part.name.substr(kModelPrefix.size());
      const auto [found, added] = known.try_emplace(name, whole.size());
      if (added) whole.emplace_back(name, at::empty(part.global_shape, part.dtype));
      auto values = at::empty(part.shape, part.dtype);
      if (source == root) {
        values = values_of(parts[own++]);
      } else {
        communicator.recv(values, source, "state_dict");
      }
      block_of(whole[found->second].second, part.offsets, part.shape).copy_(values);
    }
  }
  return whole;
}

}  // namespace troupe
