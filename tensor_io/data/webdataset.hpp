#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensor_io/data/datasets.hpp"
#include "tensor_io/data/image_reader.hpp"
#include "tensor_io/data/tar_shard.hpp"

namespace troupe {

/// The shards of a data set. Their numbers of samples are in index.json beside them (WebDataset's
/// wids-shard-index-v1). With it a rank opens only the shards that it reads; without it all headers are read at the
/// start. Any thread.
class ShardFolder {
 public:
  /// data_dir: a folder of .tar files, or a pattern in braces. Throws Error(unavailable) for a missing file,
  /// Error(bad_data) for a bad one.
  ShardFolder(const std::string& data_dir, bool keep_start, std::int64_t most_samples = kMostKeptSamples);
  std::size_t shards() const noexcept { return entries_.size(); }
  const std::string& path(std::size_t shard) const { return entries_[shard]->path; }
  std::int64_t samples(std::size_t shard) const { return entries_[shard]->samples; }
  /// Reads the headers on the first request. Throws Error(bad_data), also if index.json promised another number of
  /// samples. The last requested shards are kept, kMostKept of them or kMostKeptSamples samples, whichever is more: a
  /// rank in the middle of an epoch needs those that its lanes shuffle.
  std::shared_ptr<const TarShard> open(std::size_t shard) const;
  static constexpr std::size_t kMostKept = 128;  // twice as many as there are lanes (ShardOrder)
  static constexpr std::int64_t kMostKeptSamples = std::int64_t{1} << 20;  // some 100 MB of headers
  /// The number of opened shards: a rank opens its own.
  std::int64_t opened() const;
  /// The number of kept shards now.
  std::size_t kept() const;
  std::vector<std::string> take_notices() const;
  /// Members of the shards that were opened, which are no part of a sample.
  PassedOver passed_over() const;

 private:
  struct Entry {
    std::string path;
    std::int64_t samples = -1;
    bool indexed = false;  // index.json has the number
    std::mutex mutex;      // held while it is read, so that only one thread does
    // Guarded by ShardFolder's mutex.
    std::int64_t found = -1;  // samples when it was first opened
    std::shared_ptr<const TarShard> shard;
    std::list<std::size_t>::iterator place{};  // in recent_, if there is a shard
  };
  void read_index(const std::string& folder);
  std::shared_ptr<const TarShard> read_headers(std::size_t shard) const;
  std::shared_ptr<const TarShard> kept_shard(std::size_t shard) const;

  bool keep_start_;
  std::int64_t most_samples_;
  std::vector<std::unique_ptr<Entry>> entries_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  mutable std::vector<std::string> notices_;
  mutable PassedOver passed_over_;
  mutable std::list<std::size_t> recent_;  // shards that are kept, the latest first
  mutable std::int64_t kept_samples_ = 0;
};

/// Pictures with labels in tar shards: a member .jpg, .jpeg or .png, and .cls, the label's number as text. Input and
/// target as ImageFolder's.
class WebDataset final : public Dataset {
 public:
  enum class Part { all, most, rest };  ///< most: all but every 20th sample of a shard; rest: those
  WebDataset(std::shared_ptr<const ShardFolder> folder, std::vector<std::size_t> shards, Part part,
             const ImageReader& reader, std::int64_t num_classes);
  std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  Example get(std::int64_t index, const SampleContext& context) const override;
  Batch get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const override;
  std::vector<std::int64_t> shard_sizes() const override;
  std::uint64_t files_hash() const override;
  std::vector<std::string> take_notices() const override { return folder_->take_notices(); }
  std::string name() const override { return "webdataset"; }

 private:
  std::int64_t read(std::int64_t index, const SampleContext& context, float* out) const;  // returns the label

  std::shared_ptr<const ShardFolder> folder_;
  std::vector<std::size_t> shards_;
  Part part_;
  ImageReader reader_;
  std::int64_t num_classes_;
  std::vector<std::int64_t> ends_;  // of each of shards_, behind its last sample's number
};

/// The data to train on and to measure on. Shards with `val` in their name (file_names.hpp) are held out, or those with
/// `test` if there is no `val`. Without either, every 20th sample of each shard is. Throws Error(bad_data) if all are
/// held out.
TrainAndHeldOut read_webdataset(const DataOptions& options);

}  // namespace troupe
