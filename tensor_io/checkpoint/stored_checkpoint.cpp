#include "tensor_io/checkpoint/stored_checkpoint.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/checkpoint/hashed_file.hpp"
#include "tensor_io/checkpoint/rank_state.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"

namespace troupe {

namespace {

constexpr const char* kReading = "reading the checkpoint";

// Of what has `shape`: the elements of one row of dimension 0.
std::int64_t row_elements(at::IntArrayRef shape) {
  std::int64_t elements = 1;
  for (std::size_t d = 1; d < shape.size(); ++d) elements *= shape[d];
  return elements;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

class CheckpointFolder::Folder {
 public:
  explicit Folder(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {
    if (fd_ >= 0) return;
    const int why = errno;
    if (why == ELOOP || why == ENOTDIR)
      throw Error(ErrorCode::bad_data, std::string(kReading) + ": " + path,
                  "is not a folder (symbolic links are not followed)");
    if (why == ENOENT) throw Error(ErrorCode::bad_data, std::string(kReading) + ": " + path, "is missing");
    throw Error(ErrorCode::io, std::string(kReading) + ": " + path, std::system_category().message(why));
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { ::close(fd_); }
  int fd() const noexcept { return fd_; }

 private:
  int fd_;
};

struct CheckpointFolder::TensorFile {
  SafetensorsFile file;
  HashedFile hashed;

  TensorFile(BoundedFile bounded, const FileDigest& digest)
      : file(std::move(bounded)), hashed(file.file(), digest, [this](std::uint64_t offset) { return blame(offset); }) {
    // What was parsed is what was hashed.
    std::vector<std::byte> head(file.head().size());
    hashed.read(0, head);
    if (!std::equal(head.begin(), head.end(), file.head().begin())) file.file().refuse("changed while it was read");
  }
  std::string blame(std::uint64_t offset) const {
    for (const auto& entry : file.entries()) {
      if (entry.begin + entry.bytes > offset) return ", in or after tensor " + printable(entry.name);
    }
    return {};
  }
};

CheckpointFolder::~CheckpointFolder() = default;

BoundedFile CheckpointFolder::open(const std::string& name) const {
  return BoundedFile(kReading, folder_->fd(), name, path_ + "/" + name);
}

CheckpointFolder::CheckpointFolder(std::string path) : path_(std::move(path)) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();  // with it, a symbolic link would be followed
  folder_ = std::make_unique<Folder>(path_);
  const auto manifest_file = open(std::string(kManifestFile));
  manifest_ = Manifest::from_text(manifest_file.read_all(Manifest::kMaxBytes),
                                  manifest_file.operation() + ": " + manifest_file.path());

  auto folder_name = std::filesystem::path(path_).filename().string();
  if (folder_name.starts_with(kReplacedPrefix)) folder_name.erase(0, kReplacedPrefix.size());
  if (const auto step = parse_step_folder_name(folder_name); step && *step != manifest_.step) {
    manifest_file.refuse("is that of step " + std::to_string(manifest_.step) +
                         ", so it does not belong in this folder");
  }
  for (const auto& [name, digest] : manifest_.files) {
    const auto file = open(name);
    if (file.bytes() != digest.bytes)
      file.refuse("has " + std::to_string(file.bytes()) + " bytes, the manifest says " + std::to_string(digest.bytes),
                  "copy the checkpoint again: the file was cut short or replaced");
  }
  for (const auto& tensor : manifest_.tensors) {
    entries_.emplace(tensor.name, Entry{tensor.dtype, tensor.shape});
    tensors_.emplace(tensor.name, &tensor);
  }
}

CheckpointFolder::TensorFile& CheckpointFolder::tensor_file(const std::string& name) const {
  auto& opened = files_[name];
  if (!opened) {
    auto file = std::make_unique<TensorFile>(open(name), manifest_.files.at(name));
    check_slices(name, file->file);
    opened = std::move(file);
  }
  return *opened;
}

void CheckpointFolder::check_slices(const std::string& name, const SafetensorsFile& file) const {
  std::size_t used = 0;
  for (const auto& tensor : manifest_.tensors) {
    for (const auto& slice : tensor.slices) {
      if (slice.file != name) continue;
      const auto* entry = file.find(tensor.name);
      const auto what = "tensor " + printable(tensor.name);
      if (!entry) file.file().refuse(what + " is missing; the manifest says that it is here");
      if (entry->dtype != tensor.dtype) file.file().refuse(what + " has another dtype than the manifest says");
      if (entry->shape != slice.shape) file.file().refuse(what + " has another shape than the manifest says");
      ++used;
    }
  }
  if (used != file.entries().size()) {
    file.file().refuse("holds " + std::to_string(file.entries().size()) + " tensors, the manifest has " +
                       std::to_string(used) + " slices in it");
  }
}

void CheckpointFolder::check() const {
  for (const auto& [name, digest] : manifest_.files) {
    if (name.ends_with(".safetensors")) tensor_file(name);
  }
}

void CheckpointFolder::verify() const {
  for (const auto& [name, digest] : manifest_.files) {
    if (name.ends_with(".safetensors")) {
      tensor_file(name).hashed.verify();
    } else {
      const auto file = open(name);
      HashedFile(file, digest).verify();
    }
  }
  for (std::int64_t rank = 0; rank < manifest_.ranks; ++rank)
    RankState::from_json(rank_state(rank), path_ + "/" + rank_state_file(rank));
}

std::string CheckpointFolder::rank_state(std::int64_t rank) const {
  const auto name = rank_state_file(rank);
  const auto file = open(name);
  if (file.bytes() > kMaxRankStateBytes)
    file.refuse("has " + std::to_string(file.bytes()) + " bytes, more than a rank's state may have");
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  HashedFile(file, manifest_.files.at(name)).read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void CheckpointFolder::read(const std::string& name, at::IntArrayRef offsets, const at::Tensor& target) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw Error(ErrorCode::internal, kReading, "there is no tensor " + printable(name) + " in " + path_);
  const auto& tensor = *found->second;
  const auto dimensions = tensor.shape.size();
  if (offsets.size() != dimensions || static_cast<std::size_t>(target.dim()) != dimensions ||
      target.scalar_type() != tensor.dtype)
    throw Error(ErrorCode::internal, kReading,
                "tensor " + printable(name) + " was asked for in another shape or dtype");
  for (const auto& slice : tensor.slices) {
    // What they have in common, as it lies in the slice and in the target.
    std::vector<std::int64_t> in_slice(dimensions), in_target(dimensions), shape(dimensions);
    bool empty = false;
    for (std::size_t d = 0; d < dimensions; ++d) {
      const auto begin = std::max(slice.offsets[d], offsets[d]);
      const auto end =
          std::min(slice.offsets[d] + slice.shape[d], offsets[d] + target.size(static_cast<std::int64_t>(d)));
      empty = empty || begin >= end;
      in_slice[d] = begin - slice.offsets[d];
      in_target[d] = begin - offsets[d];
      shape[d] = end - begin;
    }
    if (empty) continue;
    auto& file = tensor_file(slice.file);
    const auto& entry = *file.file.find(name);
    // The rows of the slice that hold it, and of them all columns.
    const auto first_row = dimensions > 0 ? in_slice[0] : 0;
    const auto begin =
        entry.begin + static_cast<std::uint64_t>(first_row * row_elements(slice.shape)) * target.element_size();
    auto rows_shape = slice.shape;
    if (dimensions > 0) rows_shape[0] = shape[0];
    auto wanted = block_of(target, in_target, shape);
    if (rows_shape == shape && wanted.is_contiguous() && wanted.is_cpu()) {
      file.hashed.read(begin, bytes_of(wanted));
      continue;
    }
    const auto rows = empty_tensor(rows_shape, tensor.dtype, std::string(kReading) + ": " + path_);
    file.hashed.read(begin, bytes_of(rows));
    if (dimensions > 0) in_slice[0] = 0;
    wanted.copy_(block_of(rows, in_slice, shape));
  }
}

TrainingState CheckpointFolder::read_all() const {
  TrainingState state;
  state.step = manifest_.step;
  state.epoch = manifest_.epoch;
  state.step_in_epoch = manifest_.step_in_epoch;
  state.metadata = manifest_.metadata;
  check();
  for (std::int64_t rank = 0; rank < manifest_.ranks; ++rank) state.rank_state.push_back(rank_state(rank));
  for (const auto& tensor : manifest_.tensors) {
    const auto whole = empty_tensor(tensor.shape, tensor.dtype, std::string(kReading) + ": " + path_);
    read(tensor.name, whole);
    state.tensors.emplace_back(tensor.name, whole);
  }
  return state;
}

}  // namespace troupe
