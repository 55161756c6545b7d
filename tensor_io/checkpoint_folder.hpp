#pragma once
#include <map>
#include <string>

#include "tensor_io/bounded_file.hpp"
#include "tensor_io/manifest.hpp"
#include "tensor_io/named_state.hpp"
#include "tensor_io/safetensors.hpp"

namespace troupe {

/// One checkpoint, opened and checked as far as that goes without reading tensors: the manifest's hash and rules, every file there and of
/// the right length, headers that say what the manifest says. Throws Error(bad_data), Error(io). One thread.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::string path);

  const Manifest& manifest() const noexcept { return manifest_; }
  /// Reads and hashes every file.
  void verify() const;
  /// Everything, with the hashes checked on what is returned.
  TrainingState read() const;

 private:
  void check_slices() const;
  void compare(const BoundedFile& file, const std::string& name, const FileDigest& actual) const;
  void read_tensors(TrainingState& state) const;

  std::string path_;
  Manifest manifest_;
  std::map<std::string, SafetensorsFile> tensor_files_;  // by name
  std::map<std::string, BoundedFile> other_files_;
};

}  // namespace troupe
