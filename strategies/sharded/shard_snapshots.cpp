#include "strategies/sharded/shard_snapshots.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/base/number_of.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;
constexpr std::int64_t kPage = 4096;

// Of a copy, as a rank says it.
std::int64_t length_of(const std::string& text) {
  const auto length = number_of<std::int64_t>(text).value_or(-1);
  if (length < 0 || length > kMostBytes)
    throw Error(ErrorCode::bad_data, "the copy of a shard",
                "a rank says that it has '" + text.substr(0, 64) + "' bytes");
  return length;
}

// What a rank says before an exchange: "BYTES [[GENERATION,STEP,SHARD,SHARDS]]".
std::string announcement(const ShardPacker& own) { return std::to_string(own.bytes()) + " " + to_text({own.held()}); }

std::pair<std::int64_t, HeldShard> announced(const std::string& text) {
  const auto space = std::min(text.find(' '), text.size());
  const auto held = held_shards_of(std::string_view(text).substr(space));
  if (held.size() != 1)
    throw Error(ErrorCode::bad_data, "the copy of a shard",
                "a rank announces " + std::to_string(held.size()) + " at once");
  return {length_of(text.substr(0, space)), held.front()};
}

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

void ShardSnapshots::exchange(const ShardPacker& own, const std::vector<std::string>& hosts,
                              Communicator& communicator) {
  std::vector<std::int64_t> lengths;
  std::vector<HeldShard> shards;
  for (const auto& text : communicator.all_gather_bytes(announcement(own), "snapshot")) {
    const auto [length, shard] = announced(text);
    lengths.push_back(length);
    shards.push_back(shard);
  }
  const auto kept = copies_.size();
  if (const auto* room = room_for(own.held().generation, lengths, communicator)) {
    const auto place = [&](std::size_t r) { return (*room)[r].narrow(0, 0, lengths[r]); };
    own.pack(place(static_cast<std::size_t>(communicator.rank())));
    fault_point("snapshot", own.held().step);
    communicator.barrier("snapshot");  // a rank that comes out knows that all have packed theirs
    for (std::size_t r = 0; r < shards.size(); ++r) copies_.push_back({shards[r], place(r)});
    turn_ = 1 - turn_;
  } else {
    give_to_buddy(own, hosts, lengths, communicator);
    fault_point("snapshot", own.held().step);
    communicator.barrier("snapshot");  // a rank that comes out knows that all have theirs
  }
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(kept));
}

// Where the next set goes; nothing where the ranks have no memory in common. All decide alike, by what all have said.
const ShardSnapshots::Room* ShardSnapshots::room_for(std::uint64_t generation, const std::vector<std::int64_t>& lengths,
                                                     Communicator& communicator) {
  if (communicator.world_size() == 1 || !communicator.device().is_cpu()) return nullptr;
  if (generation != generation_) rooms_ = {};  // other ranks; copies keep the memory that they lie in
  generation_ = generation;
  auto& room = rooms_[turn_];
  const bool fits = std::equal(lengths.begin(), lengths.end(), room.begin(), room.end(),
                               [](std::int64_t length, const at::Tensor& memory) { return length <= memory.numel(); });
  if (!fits) {
    room.clear();
    for (const auto length : lengths) {  // one by one: nobody waits for more than one shard's pages
      const auto memory =
          communicator.allocate_shared((length / kPage + 2) * kPage, at::kByte);  // the note in a copy may grow
      if (!memory.defined()) return nullptr;
      room.push_back(memory);
    }
  }
  return &room;
}

void ShardSnapshots::give_to_buddy(const ShardPacker& own, const std::vector<std::string>& hosts,
                                   const std::vector<std::int64_t>& lengths, Communicator& communicator) {
  const int n = communicator.world_size(), rank = communicator.rank(), shift = buddy_shift(hosts);
  const auto mine = own.pack();
  copies_.push_back({own.held(), mine});
  if (shift == 0) return;
  const int buddy = (rank + shift) % n, ward = (rank - shift + n) % n;
  auto theirs = bytes_of_length(lengths[static_cast<std::size_t>(ward)]);
  // Along each ring of buddies the ranks are numbered; the even ones send first.
  const auto ring = [&] {
    int steps = 0;
    for (int r = rank; r != rank % std::gcd(shift, n); r = (r - shift + n) % n) ++steps;
    return steps;
  }();
  if (ring % 2 == 0) communicator.send(mine, buddy, "snapshot");
  communicator.recv(theirs, ward, "snapshot");
  if (ring % 2 != 0) communicator.send(mine, buddy, "snapshot");
  const auto held = ShardCopy::unpack(theirs).held;  // the network may have damaged it
  copies_.push_back({held, std::move(theirs)});
}

std::optional<RestorePlan> ShardSnapshots::restore(Communicator& communicator,
                                                   const std::function<void(const ShardCopy&)>& place) {
  std::vector<HeldShard> mine;
  for (const auto& copy : copies_) mine.push_back(copy.held);
  std::vector<std::vector<HeldShard>> held;
  for (const auto& text : communicator.all_gather_bytes(to_text(mine), "snapshots"))
    held.push_back(held_shards_of(text));
  auto plan = plan_restore(held);
  if (!plan) return plan;
  for (std::size_t shard = 0; shard < plan->holders.size(); ++shard) {
    const int holder = plan->holders[shard];
    const HeldShard wanted{plan->generation, plan->step, static_cast<std::int32_t>(shard),
                           static_cast<std::int32_t>(plan->holders.size())};
    const auto found =
        std::find_if(copies_.begin(), copies_.end(), [&](const auto& copy) { return copy.held == wanted; });
    const auto length = length_of(communicator.broadcast_bytes(
        communicator.rank() == holder ? std::to_string(found->bytes.numel()) : "", holder, "snapshot"));
    auto bytes = communicator.rank() == holder ? found->bytes : bytes_of_length(length);
    communicator.broadcast(bytes, holder, "snapshot");
    const auto copy = ShardCopy::unpack(std::move(bytes));
    if (copy.held != wanted) {
      throw Error(
          ErrorCode::bad_data, "the copy of a shard",
          "rank " + std::to_string(holder) + " has " + to_text({copy.held}) + " where it said " + to_text({wanted}));
    }
    place(copy);
  }
  return plan;
}

void ShardSnapshots::restore_all(Communicator& communicator, const std::function<void(const ShardCopy&)>& place) {
  if (restore(communicator, place)) return;
  throw Error(ErrorCode::state_lost, "recovery",
              "a lost rank took its shard of the state with it, and no other rank has a copy",
              "start again with --resume auto; snapshot_every keeps copies");
}

}  // namespace troupe
