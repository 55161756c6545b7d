#include "strategies/mesh/mesh_groups.hpp"

namespace troupe {

std::shared_ptr<Communicator> split_off(const StrategyContext& context, Communicator& from, int color,
                                        const std::string& what) {
  return context.split(from, color, context.rank, what + " group " + std::to_string(color));
}

MeshGroups make_mesh_groups(const StrategyContext& context, const Mesh& mesh) {
  const auto place = mesh.place_of(context.rank);
  const auto copy = place.dp * mesh.fsdp + place.fsdp;  // of those that see different samples
  auto& all = *context.program_communicator;
  MeshGroups groups;
  groups.tp = split_off(context, all, place.pp * mesh.dp * mesh.fsdp + copy, "tensor parallel");
  groups.dp = split_off(context, all, (place.pp * mesh.fsdp + place.fsdp) * mesh.tp + place.tp, "data parallel");
  groups.pp = split_off(context, all, copy * mesh.tp + place.tp, "pipeline");
  return groups;
}

void MeshGroups::set_step(std::int64_t step) const {
  for (const auto* group : {&tp, &dp, &pp}) (*group)->ledger().set_step(step);
}

}  // namespace troupe
