#pragma once
#include <memory>
#include <string>
#include <vector>

#include "actors/strategy/strategy.hpp"
#include "strategies/sharded/sharded_mode.hpp"

namespace troupe {

/// The ranks over which the state is cut, and those that hold the same shard as this one.
struct ShardGroups {
  std::shared_ptr<Communicator> shards;    ///< one shard a rank
  std::shared_ptr<Communicator> reducing;  ///< the same ranks, for the reducer's collectives
  std::shared_ptr<Communicator> replicas;  ///< of this shard; nullptr: there are none

  int replica() const { return replicas ? replicas->rank() : 0; }
  int replica_count() const { return replicas ? replicas->world_size() : 1; }
};

/// Collective, and registers what it makes. Throws Error(usage) if hosts have unequal numbers of ranks.
ShardGroups make_shard_groups(const StrategyContext& context, const ShardedMode& mode);

/// Whether hybrid_shard has equal groups when `leaving` ranks are gone: a multiple of `shard_size` stays, or with 0 as
/// many ranks on each host. `hosts` by rank.
bool has_equal_groups_without(const std::vector<int>& leaving, const std::vector<std::string>& hosts, int shard_size);

}  // namespace troupe
