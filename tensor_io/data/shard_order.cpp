#include "tensor_io/data/shard_order.hpp"

#include <algorithm>

#include "tensor_io/base/mix_seed.hpp"
#include "tensor_io/data/sampler.hpp"

namespace troupe {

ShardOrder::ShardOrder(ShardOrderOptions options) : options_(std::move(options)) {
  for (const auto size : options_.shard_sizes) {
    first_of_.push_back(samples_);
    samples_ += size;
  }
  if (!options_.shuffle) return;
  const auto most = std::min({kMostLanes, static_cast<std::int64_t>(first_of_.size()), samples_});
  for (std::int64_t lanes = 1; lanes <= most; ++lanes) {
    if (options_.batch_size % lanes == 0) lanes_ = lanes;
  }
}

std::int64_t ShardOrder::in_lane(std::int64_t epoch, std::int64_t lane, std::int64_t length, std::int64_t k) const {
  if (!options_.shuffle) return k;
  const auto window = options_.shuffle_buffer, number = k / window;
  const auto key = mix_seed(options_.seed, {0x1a4e, static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(lane),
                                            static_cast<std::uint64_t>(number)});
  return number * window + Permutation(std::min(window, length - number * window), key)(k % window);
}

std::vector<ShardOrder::Place> ShardOrder::slots(std::int64_t epoch, std::int64_t step, std::int64_t first,
                                                 std::int64_t last) const {
  const auto shards = static_cast<std::int64_t>(first_of_.size());
  const Permutation order(shards, mix_seed(options_.seed, {0x54a2, static_cast<std::uint64_t>(epoch)}));
  std::vector<std::int64_t> shard_at(first_of_.size()), ends(first_of_.size());  // by place in this epoch
  std::int64_t end = 0;
  for (std::size_t place = 0; place < shard_at.size(); ++place) {
    const auto at = static_cast<std::int64_t>(place);
    shard_at[place] = options_.shuffle ? order(at) : at;
    ends[place] = end += options_.shard_sizes[static_cast<std::size_t>(shard_at[place])];
  }
  const auto of_lane = options_.batch_size / lanes_;
  std::vector<Place> places;
  for (auto slot = first; slot < last; ++slot) {
    const auto lane = slot / of_lane;
    const auto begin = samples_ * lane / lanes_, length = samples_ * (lane + 1) / lanes_ - begin;
    const auto k = step * of_lane + slot % of_lane;
    const auto position = begin + in_lane(epoch, lane, length, k % length);
    const auto place = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), position) - ends.begin());
    const auto shard = static_cast<std::size_t>(shard_at[place]);
    places.push_back({first_of_[shard] + position - (ends[place] - options_.shard_sizes[shard]), k >= length});
  }
  return places;
}

}  // namespace troupe
