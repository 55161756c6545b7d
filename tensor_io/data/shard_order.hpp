#pragma once
#include <cstdint>
#include <vector>

namespace troupe {

struct ShardOrderOptions {
  std::vector<std::int64_t> shard_sizes;  ///< samples of each file, in the order of the samples' numbers
  std::int64_t batch_size = 64;           ///< global, of one optimizer step
  bool shuffle = true;
  std::int64_t shuffle_buffer = 1024;  ///< samples that are shuffled among themselves, within a lane
  std::uint64_t seed = 42;
};

/// The order of an epoch for data in files that are best read from front to back, as a pure function of (seed, epoch,
/// position). Nothing of it needs saving, and it is the same for any number of ranks. The shards, shuffled, are laid
/// one behind the other and cut into lanes of equal length, whatever the shards' sizes. Each lane gives the same share
/// of every batch and is shuffled in windows of `shuffle_buffer` samples. Ranks take contiguous parts of a batch, so a
/// rank reads its own lanes' shards; with fewer ranks each reads more lanes. (MosaicML's Streaming calls a lane a
/// canonical node.)
class ShardOrder {
 public:
  static constexpr std::int64_t kMostLanes = 64;

  explicit ShardOrder(ShardOrderOptions options);

  /// The largest divisor of the batch that is at most kMostLanes and the number of shards; 1 without shuffling: the
  /// files' own order.
  std::int64_t lanes() const noexcept { return lanes_; }

  struct Place {
    std::int64_t index = 0;
    bool padding = false;  ///< the epoch is over: a sample from the lane's beginning, which does not count
  };
  /// The contents of the slots [first, last) of a step's batch.
  std::vector<Place> slots(std::int64_t epoch, std::int64_t step, std::int64_t first, std::int64_t last) const;

 private:
  std::int64_t in_lane(std::int64_t epoch, std::int64_t lane, std::int64_t length, std::int64_t k) const;

  ShardOrderOptions options_;
  std::vector<std::int64_t> first_of_;  // of each shard, its first sample's number
  std::int64_t samples_ = 0, lanes_ = 1;
};

}  // namespace troupe
