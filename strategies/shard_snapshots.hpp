#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tensor_io/communicator.hpp"
#include "tensor_io/named_state.hpp"

namespace troupe {

/// Which shard of the state a rank has a copy of, and of when.
struct HeldShard {
  std::uint64_t generation = 0;  ///< whose cut of the state it is
  std::int64_t step = 0;         ///< steps done
  std::int32_t shard = 0, shards = 1;

  bool operator==(const HeldShard&) const = default;
};

/// From where a state is put together again.
struct RestorePlan {
  std::uint64_t generation = 0;
  std::int64_t step = 0;
  std::vector<int> holders;  ///< by shard: the rank whose copy is taken
};

/// The newest step of which every shard has a copy somewhere; nothing if there is none. `held` by rank. A pure function.
std::optional<RestorePlan> plan_restore(const std::vector<std::vector<HeldShard>>& held);

/// Rank r's buddy is rank (r + shift) % n: the smallest shift with which each rank's buddy is on another host, else the one with which
/// most are. 0 for one rank.
int buddy_shift(const std::vector<std::string>& hosts);

/// Tensors end to end, with their names, and what they are a copy of.
struct ShardCopy {
  HeldShard held;
  std::string note;      ///< the program's
  NamedTensors tensors;  ///< views of `bytes`
  at::Tensor bytes;      ///< (n,) u8: all of it, as it travels

  static ShardCopy pack(const HeldShard& held, const std::string& note, const NamedTensors& tensors);
  /// Of bytes that `pack` made, on this rank or another.
  static ShardCopy unpack(at::Tensor bytes);
};

/// This rank's copies: of its own shard and of its buddy's. A set of one step is replaced only when every rank has the next one, so a rank
/// that dies at any moment leaves a whole set behind, unless its buddy dies too before the job has gone on.
class ShardSnapshots {
 public:
  /// Collective over `lane`. Keeps `own`, gives it to this rank's buddy and takes the one that this rank is the buddy of.
  void exchange(ShardCopy own, const std::vector<std::string>& hosts, Communicator& lane);
  /// Collective over `lane`, of the ranks that are left and those that are new: every shard of the newest whole set, one after the other,
  /// is brought to all and handed to `place`. Nothing if there is no whole set.
  std::optional<RestorePlan> restore(Communicator& lane, const std::function<void(const ShardCopy&)>& place);

 private:
  std::vector<ShardCopy> copies_;
};

}  // namespace troupe
