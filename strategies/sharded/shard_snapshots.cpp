#include "strategies/sharded/shard_snapshots.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "tensor_io/base/fault_point.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kPage = 4096;

at::Tensor bytes_of_length(std::int64_t bytes) { return at::empty({bytes}, at::TensorOptions().dtype(at::kByte)); }

}  // namespace

std::optional<RestorePlan> plan_restore(const std::vector<std::vector<HeldShard>>& held) {
  std::map<std::tuple<std::int64_t, std::uint64_t, std::int32_t>, std::vector<int>>
      sets;  // (step, generation, shards) -> holders
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    for (const auto& copy : held[rank]) {
      if (copy.shards < 1 || copy.shard < 0 || copy.shard >= copy.shards) continue;
      auto& holders =
          sets.try_emplace({copy.step, copy.generation, copy.shards}, static_cast<std::size_t>(copy.shards), -1)
              .first->second;
      auto& holder = holders[static_cast<std::size_t>(copy.shard)];
      if (holder < 0) holder = static_cast<int>(rank);
    }
  }
  const auto newest = std::find_if(sets.rbegin(), sets.rend(), [](const auto& set) {
    return std::find(set.second.begin(), set.second.end(), -1) == set.second.end();
  });
  if (newest == sets.rend()) return std::nullopt;
  return RestorePlan{std::get<1>(newest->first), std::get<0>(newest->first), newest->second};
}

int buddy_shift(const std::vector<std::string>& hosts) {
  const auto n = hosts.size();
  std::size_t best = 1, most = 0;
  for (std::size_t shift = 1; shift < n; ++shift) {
    std::size_t elsewhere = 0;
    for (std::size_t r = 0; r < n; ++r) elsewhere += hosts[r] != hosts[(r + shift) % n] ? 1 : 0;
    if (elsewhere > most) best = shift, most = elsewhere;
  }
  return n > 1 ? static_cast<int>(best) : 0;
}

std::vector<int> heirs_of(const std::vector<int>& leaving, int ranks) {
  std::vector<int> staying, heirs;
  for (int rank = 0; rank < ranks; ++rank) {
    if (std::find(leaving.begin(), leaving.end(), rank) == leaving.end()) staying.push_back(rank);
  }
  for (std::size_t i = 0; i < leaving.size() && !staying.empty(); ++i) heirs.push_back(staying[i % staying.size()]);
  return heirs;
}

void ShardSnapshots::exchange(const ShardPacker& own, const std::vector<std::string>& hosts, Communicator& communicator,
                              const std::vector<int>& leaving) {
  std::vector<HeldShard> shards;
  for (const auto& text : communicator.all_gather_bytes(to_text({own.held()}), "snapshot")) {
    const auto announced = held_shards_of(text);
    if (announced.size() != 1)
      throw Error(ErrorCode::bad_data, "the copy of a shard",
                  "a rank announces " + std::to_string(announced.size()) + " copies instead of one");
    shards.push_back(announced.front());
  }
  const auto kept = copies_.size();
  if (const auto* room = room_for(own.held().generation, shards, communicator)) {
    const auto place = [&](std::size_t r) { return (*room)[r].narrow(0, 0, shards[r].bytes); };
    own.pack(place(static_cast<std::size_t>(communicator.rank())));
    fault_point("snapshot", own.held().step);
    communicator.barrier("snapshot");  // a rank that comes out knows that all have packed theirs
    for (std::size_t r = 0; r < shards.size(); ++r) copies_.push_back({shards[r], place(r)});
    turn_ = 1 - turn_;
  } else {
    const auto mine = give_to_buddy(own, hosts, shards, communicator);
    give_to_heirs(mine, leaving, shards, communicator);
    fault_point("snapshot", own.held().step);
    communicator.barrier("snapshot");  // a rank that comes out knows that all have theirs
  }
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(kept));
}

// Where the next set goes; nothing where the ranks have no memory in common. All decide alike, by what all have said.
const ShardSnapshots::Room* ShardSnapshots::room_for(std::uint64_t generation, const std::vector<HeldShard>& shards,
                                                     Communicator& communicator) {
  if (communicator.world_size() == 1 || !communicator.device().is_cpu()) return nullptr;
  if (generation != generation_) rooms_ = {};  // other ranks; copies keep the memory that they lie in
  generation_ = generation;
  auto& room = rooms_[turn_];
  const bool fits =
      std::equal(shards.begin(), shards.end(), room.begin(), room.end(),
                 [](const HeldShard& shard, const at::Tensor& memory) { return shard.bytes <= memory.numel(); });
  if (!fits) {
    room.clear();
    for (const auto& shard : shards) {  // one by one: nobody waits for more than one shard's pages
      const auto memory =
          communicator.allocate_shared((shard.bytes / kPage + 2) * kPage, at::kByte);  // the note in a copy may grow
      if (!memory.defined()) return nullptr;
      room.push_back(memory);
    }
  }
  return &room;
}

at::Tensor ShardSnapshots::give_to_buddy(const ShardPacker& own, const std::vector<std::string>& hosts,
                                         const std::vector<HeldShard>& shards, Communicator& communicator) {
  const int n = communicator.world_size(), rank = communicator.rank(), shift = buddy_shift(hosts);
  auto mine = own.pack();
  copies_.push_back({own.held(), mine});
  if (shift == 0) return mine;
  const int buddy = (rank + shift) % n, ward = (rank - shift + n) % n;
  // Along each ring of buddies the ranks are numbered; the even ones send first.
  const auto ring = [&] {
    int steps = 0;
    for (int r = rank; r != rank % std::gcd(shift, n); r = (r - shift + n) % n) ++steps;
    return steps;
  }();
  if (ring % 2 == 0) communicator.send(mine, buddy, "snapshot");
  receive(ward, shards[static_cast<std::size_t>(ward)], communicator);
  if (ring % 2 != 0) communicator.send(mine, buddy, "snapshot");
  return mine;
}

void ShardSnapshots::give_to_heirs(const at::Tensor& mine, const std::vector<int>& leaving,
                                   const std::vector<HeldShard>& shards, Communicator& communicator) {
  const auto heirs = heirs_of(leaving, communicator.world_size());
  for (std::size_t i = 0; i < heirs.size(); ++i) {
    if (leaving[i] == communicator.rank()) communicator.send(mine, heirs[i], "snapshot");
    if (heirs[i] == communicator.rank())
      receive(leaving[i], shards[static_cast<std::size_t>(leaving[i])], communicator);
  }
}

void ShardSnapshots::receive(int from, const HeldShard& shard, Communicator& communicator) {
  auto theirs = bytes_of_length(shard.bytes);
  communicator.recv(theirs, from, "snapshot");
  const auto held = ShardCopy::unpack(theirs).held;  // the network may have damaged it
  copies_.push_back({held, std::move(theirs)});
}

RestorePlan ShardSnapshots::restore(Communicator& communicator, const std::function<void(const ShardCopy&)>& place) {
  restored_.reset();
  std::vector<HeldShard> mine;
  for (const auto& copy : copies_) mine.push_back(copy.held);
  std::vector<std::vector<HeldShard>> held;
  for (const auto& text : communicator.all_gather_bytes(to_text(mine), "snapshots"))
    held.push_back(held_shards_of(text));
  const auto plan = plan_restore(held);
  if (!plan) {
    throw Error(ErrorCode::state_lost, "recovery",
                "a lost rank took its shard of the state with it, and no other rank has a copy",
                "start again with --resume auto; set snapshot_every to keep copies");
  }
  for (std::size_t shard = 0; shard < plan->holders.size(); ++shard) {
    const int holder = plan->holders[shard];
    const auto& theirs = held[static_cast<std::size_t>(holder)];
    const auto wanted = std::find_if(theirs.begin(), theirs.end(), [&](const auto& copy) {
      return copy.generation == plan->generation && copy.step == plan->step &&
             copy.shard == static_cast<std::int32_t>(shard) &&
             copy.shards == static_cast<std::int32_t>(plan->holders.size());
    });
    auto bytes = communicator.rank() == holder ? copies_[static_cast<std::size_t>(wanted - theirs.begin())].bytes
                                               : bytes_of_length(wanted->bytes);
    communicator.broadcast(bytes, holder, "snapshot");
    const auto copy = ShardCopy::unpack(std::move(bytes));
    if (copy.held != *wanted) {
      throw Error(
          ErrorCode::bad_data, "the copy of a shard",
          "rank " + std::to_string(holder) + " has " + to_text({copy.held}) + ", but announced " + to_text({*wanted}));
    }
    restored_ = {copy.held.step, copy.note};
    place(copy);
  }
  return *plan;
}

}  // namespace troupe
