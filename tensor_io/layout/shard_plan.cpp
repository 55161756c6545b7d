#include "tensor_io/layout/shard_plan.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/mix_seed.hpp"

namespace troupe {
namespace {

std::int64_t padded(std::int64_t numel) { return (numel + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment; }

void check_members(std::span<const ParameterLayout> layout, std::span<const UnitMembers> units) {
  std::vector<int> seen(layout.size(), 0);
  for (const auto& unit : units) {
    for (const auto index : unit.parameters) {
      if (index < 0 || static_cast<std::size_t>(index) >= layout.size())
        throw Error(ErrorCode::internal, "shard plan",
                    "unit " + unit.name + " has a parameter " + std::to_string(index));
      ++seen[static_cast<std::size_t>(index)];
    }
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] != 1)
      throw Error(ErrorCode::internal, "shard plan", layout[i].name + " is in " + std::to_string(seen[i]) + " units");
  }
}

}  // namespace

ShardPlan plan_shards(std::span<const ParameterLayout> layout, std::span<const UnitMembers> units, int world_size) {
  check_members(layout, units);
  ShardPlan plan;
  plan.world_size = world_size;
  plan.hash = mix_seed(layout_hash(layout), {static_cast<std::uint64_t>(world_size)});
  for (std::size_t u = 0; u < units.size(); ++u) {
    plan.units.push_back(units[u].name);
    auto members = units[u].parameters;
    std::sort(members.begin(), members.end());
    std::map<std::pair<at::ScalarType, bool>, FlatParameter> flats;  // trainable ones last
    for (const auto index : members) {
      const auto& parameter = layout[static_cast<std::size_t>(index)];
      auto& flat = flats[{parameter.dtype, parameter.requires_grad}];
      flat.unit = static_cast<std::int32_t>(u);
      flat.dtype = parameter.dtype;
      flat.trainable = parameter.requires_grad;
      flat.slots.push_back({index, flat.numel, parameter.numel()});
      flat.numel += padded(parameter.numel());
      plan.hash = mix_seed(plan.hash, {static_cast<std::uint64_t>(index)});
    }
    for (auto& [key, flat] : flats) {
      flat.shard_numel = padded((flat.numel + world_size - 1) / world_size);
      flat.numel = flat.shard_numel * world_size;
      plan.hash = mix_seed(plan.hash, {static_cast<std::uint64_t>(flat.numel)});
      plan.flats.push_back(std::move(flat));
    }
  }
  return plan;
}

std::string ShardPlan::describe() const {
  std::size_t parameters = 0;
  double bytes = 0;
  for (const auto& flat : flats) {
    parameters += flat.slots.size();
    bytes += static_cast<double>(flat.numel) * static_cast<double>(c10::elementSize(flat.dtype));
  }
  char text[128];
  std::snprintf(text, sizeof text, "%zu parameters in %zu unit%s, %.1f of %.1f MiB on each rank", parameters,
                units.size(), units.size() == 1 ? "" : "s", bytes / world_size / (1 << 20), bytes / (1 << 20));
  return text;
}

std::vector<ShardSlice> slices_of(const ShardPlan& plan, int rank) {
  std::vector<ShardSlice> slices;
  for (std::size_t f = 0; f < plan.flats.size(); ++f) {
    const auto& flat = plan.flats[f];
    const auto shard_begin = rank * flat.shard_numel, shard_end = shard_begin + flat.shard_numel;
    for (const auto& slot : flat.slots) {
      const auto begin = std::max(slot.offset, shard_begin), end = std::min(slot.offset + slot.numel, shard_end);
      if (begin >= end) continue;
      slices.push_back(
          {slot.parameter, static_cast<std::int32_t>(f), begin - slot.offset, end - begin, begin - shard_begin});
    }
  }
  return slices;
}

}  // namespace troupe
