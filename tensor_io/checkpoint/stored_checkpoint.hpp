#pragma once
#include <map>
#include <memory>
#include <string>

#include "tensor_io/checkpoint/hashed_file.hpp"
#include "tensor_io/checkpoint/manifest.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/checkpoint/state_reader.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {

/// One checkpoint. The constructor reads the manifest, checks its hash and rules, and that every file is there and has
/// the right length. A file of tensors is opened, and its header compared, when a tensor in it is read; every returned
/// byte has been hashed. Throws Error(bad_data), Error(io). One thread.
class CheckpointFolder final : public StateReader {
 public:
  explicit CheckpointFolder(std::string path);
  ~CheckpointFolder() override;

  const Manifest& manifest() const noexcept { return manifest_; }
  const std::map<std::string, Entry, std::less<>>& entries() const noexcept override { return entries_; }
  using StateReader::read;
  void read(const std::string& name, at::IntArrayRef offsets, const at::Tensor& target) const override;
  std::string rank_state(std::int64_t rank) const;

  /// Every header against the manifest.
  void check() const;
  /// Reads and hashes every file, in 1 MiB of memory.
  void verify() const;
  /// Everything.
  TrainingState read_all() const;

 private:
  struct TensorFile;
  class Folder;
  BoundedFile open(const std::string& name) const;
  TensorFile& tensor_file(const std::string& name) const;
  void check_slices(const std::string& name, const SafetensorsFile& file) const;

  std::string path_;
  std::unique_ptr<Folder> folder_;  // all files are opened relative to it, so that it cannot be exchanged in between
  Manifest manifest_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<std::string, const ManifestTensor*, std::less<>> tensors_;
  mutable std::map<std::string, std::unique_ptr<TensorFile>> files_;  // that were opened
};

}  // namespace troupe
