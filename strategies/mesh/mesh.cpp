#include "strategies/mesh/mesh.hpp"

#include <map>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/number_of.hpp"

namespace troupe {
namespace {

Error mesh_refused(const std::string& cause, const std::string& remedy = {}) {
  return Error(ErrorCode::usage, "mesh", cause, remedy);
}

}  // namespace

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
  const std::string given(text);
  std::map<std::string, int, std::less<>> sizes;
  while (!text.empty()) {
    const auto comma = text.find(',');
    const auto item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const auto equals = item.find('=');
    const std::string name(item.substr(0, equals));
    if (name != "dp" && name != "fsdp" && name != "tp" && name != "pp")
      throw mesh_refused("'" + given + "': '" + name + "' is none of dp, fsdp, tp, pp");
    const auto number = equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
    const int size = number_of<int>(number).value_or(0);
    if (size < 1 || size > 32768)
      throw mesh_refused("'" + given + "': " + name + " needs a number of ranks, at least 1, as in dp=2,pp=4");
    if (!sizes.emplace(name, size).second) throw mesh_refused("'" + given + "': " + name + " is there twice");
  }
  const auto size_of = [&](const char* name) {
    const auto found = sizes.find(name);
    return found == sizes.end() ? 1 : found->second;
  };
  Mesh mesh{size_of("dp"), size_of("tp"), size_of("pp"), size_of("fsdp")};
  const auto product = static_cast<long long>(mesh.tp) * mesh.pp * mesh.fsdp;
  if (!sizes.contains("dp") && ranks % product == 0) mesh.dp = static_cast<int>(ranks / product);
  if (product * mesh.dp != ranks) {
    throw mesh_refused("'" + given + "' is for " + std::to_string(product * mesh.dp) + " ranks, and the job has " +
                           std::to_string(ranks),
                       "the product of dp, fsdp, tp and pp is the number of ranks");
  }
  return mesh;
}

}  // namespace troupe
