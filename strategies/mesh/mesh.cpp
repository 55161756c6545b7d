#include "strategies/mesh/mesh.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "tensor_io/layout/state_texts.hpp"

namespace troupe {

Error mesh_refused(const std::string& cause, const std::string& remedy) {
  return Error(ErrorCode::usage, "mesh", cause, remedy);
}

Mesh::Place Mesh::place_of(int rank) const noexcept {
  return {rank / (tp * fsdp) % dp, rank % tp, rank / (tp * fsdp * dp), rank / tp % fsdp};
}

int Mesh::rank_at(const Place& place) const noexcept {
  return ((place.pp * dp + place.dp) * fsdp + place.fsdp) * tp + place.tp;
}

std::vector<int> Mesh::replicas_of(int rank) const {
  auto place = place_of(rank);
  std::vector<int> replicas;
  for (place.dp = 0; place.dp < dp; ++place.dp) replicas.push_back(rank_at(place));
  return replicas;
}

std::string Mesh::to_string() const {
  const auto shards = fsdp > 1 ? ",fsdp=" + std::to_string(fsdp) : "";
  return "dp=" + std::to_string(dp) + shards + ",tp=" + std::to_string(tp) + ",pp=" + std::to_string(pp);
}

Mesh parse_mesh(std::string_view text, int ranks, std::string_view whole) {
  if (text.empty()) return whole == "tp" ? Mesh{1, ranks, 1} : Mesh{1, 1, ranks};
  static const std::map<std::string, int Mesh::*> axes{
      {"dp", &Mesh::dp}, {"fsdp", &Mesh::fsdp}, {"tp", &Mesh::tp}, {"pp", &Mesh::pp}};
  const std::string given(text);
  Mesh mesh;
  std::set<std::string> named;
  std::istringstream items(given);
  for (std::string item; std::getline(items, item, ',');) {
    const auto equals = std::min(item.find('='), item.size());
    const auto name = item.substr(0, equals);
    const auto axis = axes.find(name);
    if (axis == axes.end()) throw mesh_refused("'" + given + "': '" + name + "' is not one of dp, fsdp, tp, pp");
    const auto size = whole_number(std::string_view(item).substr(std::min(equals + 1, item.size())), 1, 32768);
    if (!size) throw mesh_refused("'" + given + "': " + name + " needs a number of ranks, at least 1, as in dp=2,pp=4");
    if (!named.insert(name).second) throw mesh_refused("'" + given + "': " + name + " appears twice");
    mesh.*axis->second = static_cast<int>(*size);
  }
  const auto product = static_cast<long long>(mesh.tp) * mesh.pp * mesh.fsdp;
  if (!named.contains("dp") && ranks % product == 0) mesh.dp = static_cast<int>(ranks / product);
  if (product * mesh.dp != ranks) {
    throw mesh_refused("'" + given + "' is for " + std::to_string(product * mesh.dp) + " ranks, and the job has " +
                           std::to_string(ranks),
                       "make the product of dp, fsdp, tp and pp equal to the number of ranks");
  }
  return mesh;
}

}  // namespace troupe
