#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tensor_io/data/file_names.hpp"

namespace troupe {

/// The places of the samples in a WebDataset shard (Aizman et al., "High Performance I/O For Large Scale Deep
/// Learning", 2019), a plain tar file. Successive members with the same name, up to the first dot of its last part, are
/// one sample (webdataset's base_plus_ext). These are passed over: names without a dot or with one at the start,
/// folders, webdataset's own members (__meta__), and samples without any picture or label. The headers are read once by
/// libarchive, which skips the rest; contents are then read by offset.
class TarShard {
 public:
  struct Part {
    std::string extension;  // "jpg", "cls": the part behind the first dot, in small letters
    std::uint64_t offset = 0, bytes = 0;
  };
  struct Sample {
    std::string key;
    std::vector<Part> parts;
    /// The part with the first of these extensions that there is.
    const Part* find(std::initializer_list<const char*> extensions) const;
    /// ".jpg .cls", at most eight.
    std::string extensions() const;
  };

  /// Throws Error(bad_data) with file, offset, member and reason: no tar, compressed, cut off, a member that goes
  /// beyond the file, two members of a sample with one extension, a picture or label that is a link or a sparse file.
  /// With `keep_start`, the samples before that stay, and cut_off() has the reason for the end.
  explicit TarShard(const std::string& path, bool keep_start = false);

  const std::string& path() const noexcept { return path_; }
  const std::vector<Sample>& samples() const noexcept { return samples_; }
  const std::string& cut_off() const noexcept { return cut_off_; }
  const PassedOver& passed_over() const noexcept { return passed_over_; }
  /// A member's content. Opens the file for it, so that no shard stays open. Any thread.
  std::string read(const Part& part, std::uint64_t limit) const;
  /// "shard.tar: sample 'key' (offset 512)": for errors.
  std::string where(const Sample& sample) const;

 private:
  void read_headers();
  void add_member(const std::string& name, std::uint64_t offset, std::uint64_t bytes);
  void end_sample();

  std::string path_, cut_off_;
  std::vector<Sample> samples_;
  PassedOver passed_over_;
};

}  // namespace troupe
