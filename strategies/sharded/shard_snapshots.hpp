#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/strategy/snapshots.hpp"
#include "strategies/sharded/shard_copy.hpp"
#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// The sources of a restored state.
struct RestorePlan {
  std::uint64_t generation = 0;
  std::int64_t step = 0;
  std::vector<int> holders;  ///< by shard: the rank whose copy is used
};

/// The newest step of which every shard has a copy somewhere; nothing if there is none. `held` by rank. A pure
/// function.
std::optional<RestorePlan> plan_restore(const std::vector<std::vector<HeldShard>>& held);

/// Rank r's buddy is rank (r + shift) % n: the smallest shift with which each rank's buddy is on another host, else the
/// one with the most such buddies. 0 for one rank.
int buddy_shift(const std::vector<std::string>& hosts);

/// The keepers of leaving ranks' shards: by `leaving`, a rank of 0 to `ranks` - 1 that stays; empty: none stays.
std::vector<int> heirs_of(const std::vector<int>& leaving, int ranks);

/// The copies that this rank can reach. If the ranks have memory in common, which outlives each of them, these are all
/// ranks' copies. Else they are those of its own shard and of its ward's, the rank that it is the buddy of. A set of
/// one step is replaced only when every rank has the next one. So a rank that dies at any moment leaves a whole set
/// behind, unless its buddy dies too before the job has gone on.
class ShardSnapshots {
 public:
  /// Collective over `communicator`. Puts the copy of this rank's shard in the reach of another rank; before ranks
  /// leave, also of one that stays.
  void exchange(const ShardPacker& own, const std::vector<std::string>& hosts, Communicator& communicator,
                const std::vector<int>& leaving = {});
  /// Collective over `communicator`, of the remaining ranks and the new ones. Every shard of the newest whole set,
  /// one after the other, is brought to all and handed to `place`. Throws Error(state_lost) if there is no whole
  /// set.
  RestorePlan restore(Communicator& communicator, const std::function<void(const ShardCopy&)>& place);
  /// The snapshot of the last `restore`; empty the second time.
  std::optional<Snapshots::Restored> take_restored() { return std::exchange(restored_, std::nullopt); }

 private:
  struct Kept {
    HeldShard held;
    at::Tensor bytes;  // as ShardPacker wrote them
  };
  using Room = std::vector<at::Tensor>;  // by rank: the memory for its copy, which all ranks share

  const Room* room_for(std::uint64_t generation, const std::vector<HeldShard>& shards, Communicator& communicator);
  at::Tensor give_to_buddy(const ShardPacker& own, const std::vector<std::string>& hosts,
                           const std::vector<HeldShard>& shards, Communicator& communicator);
  void give_to_heirs(const at::Tensor& mine, const std::vector<int>& leaving, const std::vector<HeldShard>& shards,
                     Communicator& communicator);
  void receive(int from, const HeldShard& shard, Communicator& communicator);

  std::vector<Kept> copies_;
  std::array<Room, 2> rooms_;  // taken in turns, so that the set before stays
  std::size_t turn_ = 0;
  std::uint64_t generation_ = 0;  // of the rooms
  std::optional<Snapshots::Restored> restored_;
};

}  // namespace troupe
