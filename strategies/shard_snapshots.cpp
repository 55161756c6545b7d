#include "strategies/shard_snapshots.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

namespace troupe {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

at::Tensor bytes_of_length(std::int64_t bytes) { return at::empty({bytes}, at::TensorOptions().dtype(at::kByte)); }

}  // namespace

std::optional<RestorePlan> plan_restore(const std::vector<std::vector<HeldShard>>& held) {
  std::map<std::tuple<std::int64_t, std::uint64_t, std::int32_t>, std::vector<int>> sets;  // (step, generation, shards) -> holders
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    for (const auto& copy : held[rank]) {
      if (copy.shards < 1 || copy.shard < 0 || copy.shard >= copy.shards) continue;
      auto& holders = sets.try_emplace({copy.step, copy.generation, copy.shards}, static_cast<std::size_t>(copy.shards), -1).first->second;
      auto& holder = holders[static_cast<std::size_t>(copy.shard)];
      if (holder < 0) holder = static_cast<int>(rank);
    }
  }
  const auto newest = std::find_if(sets.rbegin(), sets.rend(),
                                   [](const auto& set) { return std::find(set.second.begin(), set.second.end(), -1) == set.second.end(); });
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

ShardCopy ShardCopy::pack(const HeldShard& held, const std::string& note, const NamedTensors& tensors) {
  auto entries = nlohmann::json::array();
  std::int64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec(), end});
    end += aligned(static_cast<std::int64_t>(tensor.nbytes()));
  }
  const auto head = nlohmann::json{{"generation", held.generation}, {"step", held.step}, {"shard", held.shard},
                                   {"shards", held.shards},         {"note", note},      {"tensors", entries}}
                        .dump();
  const auto begin = aligned(static_cast<std::int64_t>(sizeof(std::uint64_t) + head.size()));
  auto bytes = bytes_of_length(begin + end);
  const std::uint64_t length = head.size();
  auto* data = bytes.data_ptr<std::uint8_t>();
  std::memset(data, 0, static_cast<std::size_t>(begin));
  std::memcpy(data, &length, sizeof length);
  std::copy(head.begin(), head.end(), data + sizeof length);
  auto copy = unpack(std::move(bytes));
  for (std::size_t i = 0; i < tensors.size(); ++i) copy.tensors[i].second.copy_(tensors[i].second.detach());
  return copy;
}

ShardCopy ShardCopy::unpack(at::Tensor bytes) {
  const auto* data = bytes.data_ptr<std::uint8_t>();
  std::uint64_t length = 0;
  std::memcpy(&length, data, sizeof length);
  const auto head = nlohmann::json::parse(data + sizeof length, data + sizeof length + length);
  const auto begin = aligned(static_cast<std::int64_t>(sizeof length + length));
  ShardCopy copy{{head["generation"], head["step"], head["shard"], head["shards"]}, head["note"], {}, {}};
  for (const auto& entry : head["tensors"]) {
    const auto dtype = static_cast<at::ScalarType>(entry[1].get<int>());
    const auto sizes = entry[2].get<std::vector<std::int64_t>>();
    std::int64_t numel = 1;
    for (const auto size : sizes) numel *= size;
    const auto width = static_cast<std::int64_t>(c10::elementSize(dtype));
    copy.tensors.emplace_back(entry[0], bytes.narrow(0, begin + entry[3].get<std::int64_t>(), numel * width).view(dtype).view(sizes));
  }
  copy.bytes = std::move(bytes);
  return copy;
}

void ShardSnapshots::exchange(ShardCopy own, const std::vector<std::string>& hosts, Communicator& lane) {
  const int n = lane.world_size(), rank = lane.rank(), shift = buddy_shift(hosts);
  const auto kept = copies_.size();
  copies_.push_back(std::move(own));
  if (shift > 0) {
    const int buddy = (rank + shift) % n, ward = (rank - shift + n) % n;
    const auto& mine = copies_[kept].bytes;
    std::vector<std::int64_t> lengths;
    for (const auto& text : lane.all_gather_bytes(std::to_string(mine.numel()), "snapshot")) lengths.push_back(std::stoll(text));
    auto theirs = bytes_of_length(lengths[static_cast<std::size_t>(ward)]);
    // Along each ring of buddies the ranks are numbered; the even ones send first.
    const auto ring = [&] {
      int steps = 0;
      for (int r = rank; r != rank % std::gcd(shift, n); r = (r - shift + n) % n) ++steps;
      return steps;
    }();
    if (ring % 2 == 0) lane.send(mine, buddy, "snapshot");
    lane.recv(theirs, ward, "snapshot");
    if (ring % 2 != 0) lane.send(mine, buddy, "snapshot");
    copies_.push_back(ShardCopy::unpack(std::move(theirs)));
  }
  lane.barrier("snapshot");  // whoever comes out knows that all have theirs
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(kept));
}

std::optional<RestorePlan> ShardSnapshots::restore(Communicator& lane, const std::function<void(const ShardCopy&)>& place) {
  auto mine = nlohmann::json::array();
  for (const auto& copy : copies_) mine.push_back({copy.held.generation, copy.held.step, copy.held.shard, copy.held.shards});
  std::vector<std::vector<HeldShard>> held;
  for (const auto& text : lane.all_gather_bytes(mine.dump(), "snapshots")) {
    auto& of_rank = held.emplace_back();
    for (const auto& entry : nlohmann::json::parse(text)) of_rank.push_back({entry[0], entry[1], entry[2], entry[3]});
  }
  auto plan = plan_restore(held);
  if (!plan) return plan;
  for (std::size_t shard = 0; shard < plan->holders.size(); ++shard) {
    const int holder = plan->holders[shard];
    const HeldShard wanted{plan->generation, plan->step, static_cast<std::int32_t>(shard), static_cast<std::int32_t>(plan->holders.size())};
    const auto found = std::find_if(copies_.begin(), copies_.end(), [&](const auto& copy) { return copy.held == wanted; });
    const auto length =
        std::stoll(lane.broadcast_bytes(lane.rank() == holder ? std::to_string(found->bytes.numel()) : "", holder, "snapshot"));
    auto bytes = lane.rank() == holder ? found->bytes : bytes_of_length(length);
    lane.broadcast(bytes, holder, "snapshot");
    place(ShardCopy::unpack(std::move(bytes)));
  }
  return plan;
}

}  // namespace troupe
