#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tensor_io/data/shard_order.hpp"

namespace troupe {

/// A permutation of 0 .. n-1 as a function of a key, without memory: a balanced Feistel network over the next even
/// number of bits, walked until it lands inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA
/// 2002). Another order than torch.randperm's.
class Permutation {
 public:
  Permutation(std::int64_t n, std::uint64_t key);
  std::int64_t operator()(std::int64_t position) const noexcept;
  /// Replaces each position by its value. Many at once take a third of the time of single
  /// calls.
  void apply(std::span<std::int64_t> positions) const;

 private:
  std::int64_t n_;
  std::array<std::uint64_t, 4> keys_{};  // of each round: mix_seed(key, {round, right}) up to its last step
  unsigned half_bits_;
};

struct SamplerOptions {
  std::int64_t dataset_size = 0;
  std::int64_t batch_size = 64;  ///< global: of one optimizer step, over all ranks and micro-batches
  std::int64_t micro_batches = 1;
  int rank = 0;
  int world_size = 1;
  bool shuffle = true;
  bool drop_last = true;  ///< otherwise the last batch is smaller
  std::uint64_t seed = 42;
  bool uneven = false;  ///< ranks' shares may differ by one sample: a job that lost a rank keeps its global batch
  std::vector<std::int64_t> shard_sizes{};  ///< the data set's: read by shards (ShardOrder), if there are any
  std::int64_t shuffle_buffer = 1024;       ///< then, samples that are shuffled among themselves
  std::vector<std::int64_t> shares{};  ///< samples of a micro-batch by rank, all of them above 0; empty: equal parts
};

struct SampledBatch {
  std::vector<std::int64_t> indices;  // batch_size / micro_batches / world_size of them, one more or less if shares are
                                      // uneven; fewer in a last batch
  double weight = 1;                  // this rank's share of the step's samples times world_size and micro_batches
  std::int64_t counted =
      0;  // all of them; 0: a last batch has none for this rank, which repeats a batch that does not count
};

/// The samples of a rank, as a pure function of (seed, epoch, position): the epoch is an argument, so it can't be
/// forgotten. A step's samples are the same set for any number of ranks: step s covers positions [s·B, (s+1)·B) of the
/// epoch's order, cut into micro-batches and these into ranks.
class DistributedSampler {
 public:
  /// Throws Error(usage): batch not divisible by micro-batches times ranks, a data set smaller than one batch.
  explicit DistributedSampler(SamplerOptions options);

  std::int64_t steps_per_epoch() const noexcept { return steps_; }
  SampledBatch batch(std::int64_t epoch, std::int64_t step, std::int64_t micro_batch) const;
  const SamplerOptions& options() const noexcept { return options_; }

 private:
  SamplerOptions options_;
  std::int64_t steps_ = 0;
  std::optional<ShardOrder> shards_;
};

/// Validation: every sample once, in order, cut into world_size contiguous parts that differ by one sample at most.
/// [first, last).
std::pair<std::int64_t, std::int64_t> validation_part(std::int64_t dataset_size, int rank, int world_size);

}  // namespace troupe
