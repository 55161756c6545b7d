#include "strategies/sharded/shard_groups.hpp"

#include <algorithm>
#include <map>

namespace troupe {
namespace {

int color_of_group(const StrategyContext& context, const ShardedMode& mode) {
  if (!mode.shards) return context.rank;
  if (context.options.fsdp_shard_size > 0) return context.rank / static_cast<int>(context.options.fsdp_shard_size);
  const auto& hosts = context.hosts;
  return static_cast<int>(std::find(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(context.rank)]) -
                          hosts.begin());
}

}  // namespace

ShardGroups make_shard_groups(const StrategyContext& context, const ShardedMode& mode) {
  if (mode.shards && !mode.has_replicas) return {context.program_communicator, context.gradient_communicator, nullptr};
  const int color = color_of_group(context, mode);
  const auto split = [&](Communicator& from, int of, const char* what) {
    return context.split(from, of, context.rank, std::string(what) + " " + std::to_string(of) + " of " + from.name());
  };
  ShardGroups groups;
  groups.shards = split(*context.program_communicator, color, "shards");
  groups.reducing = split(*context.gradient_communicator, color, "shards");
  groups.replicas = split(*context.gradient_communicator, groups.shards->rank(), "replicas");
  if (groups.replica_count() * groups.shards->world_size() != context.world_size) {
    throw Error(
        ErrorCode::usage, "hybrid_shard", "the hosts have unequal numbers of ranks, so their shards do not match",
        "start the same number of ranks on each host, or set fsdp_shard_size to a divisor of every host's number");
  }
  return groups;
}

bool has_equal_groups_without(const std::vector<int>& leaving, const std::vector<std::string>& hosts, int shard_size) {
  std::map<std::string, int> on_host;
  int staying = 0;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    if (std::find(leaving.begin(), leaving.end(), rank) != leaving.end()) continue;
    ++on_host[hosts[static_cast<std::size_t>(rank)]];
    ++staying;
  }
  if (shard_size > 0) return staying % shard_size == 0;
  return std::all_of(on_host.begin(), on_host.end(),
                     [&](const auto& host) { return host.second == on_host.begin()->second; });
}

}  // namespace troupe
