#pragma once
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tensor_io/data/datasets.hpp"

namespace troupe {

/// A data set without its bad samples (on_bad_sample = "skip"). The next good one replaces each, the same on every rank
/// and in every run, so that batches keep their sizes. Only Error(bad_data) of a sample is passed over, and no more
/// than kMostInARow of them in a row.
class SkipBadSamples final : public Dataset {
 public:
  static constexpr std::int64_t kMostInARow = 100;

  explicit SkipBadSamples(std::shared_ptr<const Dataset> inner) : inner_(std::move(inner)) {
    set_description(inner_->description());
  }
  std::int64_t size() const override { return inner_->size(); }
  Example get(std::int64_t index, const SampleContext& context) const override;
  Batch collate(const std::vector<Example>& examples) const override { return inner_->collate(examples); }
  Batch get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const override;
  bool quick(std::int64_t samples) const override { return inner_->quick(samples); }
  std::vector<std::int64_t> shard_sizes() const override { return inner_->shard_sizes(); }
  std::uint64_t files_hash() const override { return inner_->files_hash(); }
  std::vector<std::string> take_notices() const override;
  std::int64_t tokens_per_sample() const override { return inner_->tokens_per_sample(); }
  std::string name() const override { return inner_->name(); }
  /// Different samples that this rank has met and skipped.
  std::int64_t skipped() const;

 private:
  std::int64_t good_from(std::int64_t index, const SampleContext& context,
                         Example& example) const;  // the sample that was read

  std::shared_ptr<const Dataset> inner_;
  mutable std::mutex mutex_;
  mutable std::set<std::int64_t> bad_;        // guarded by mutex_
  mutable std::vector<std::string> notices_;  // guarded by mutex_
};

/// By options.on_bad_sample: the data sets as they are, or without their bad samples.
TrainAndHeldOut skip_bad_samples(TrainAndHeldOut data, const DataOptions& options);

}  // namespace troupe
