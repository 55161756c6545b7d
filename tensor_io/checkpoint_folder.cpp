#include "tensor_io/checkpoint_folder.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "tensor_io/checkpoint_directory.hpp"
#include "tensor_io/checkpoint_reader.hpp"
#include "tensor_io/error.hpp"

namespace troupe {

namespace {

constexpr const char* kOperation = "reading the checkpoint";

// All files are opened relative to this, so that the folder cannot be exchanged in between.
class FolderHandle {
 public:
  explicit FolderHandle(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {
    if (fd_ >= 0) return;
    const int why = errno;
    if (why == ELOOP || why == ENOTDIR)
      throw Error(ErrorCode::bad_data, std::string(kOperation) + ": " + path, "is not a folder (symbolic links are not followed)");
    if (why == ENOENT) throw Error(ErrorCode::bad_data, std::string(kOperation) + ": " + path, "is missing");
    throw Error(ErrorCode::io, std::string(kOperation) + ": " + path, std::system_category().message(why));
  }
  FolderHandle(const FolderHandle&) = delete;
  FolderHandle& operator=(const FolderHandle&) = delete;
  ~FolderHandle() { ::close(fd_); }
  int fd() const noexcept { return fd_; }

 private:
  int fd_;
};

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

FileDigest digest_of(const BoundedFile& file) {
  DigestBuilder builder;
  std::vector<std::byte> buffer(FileDigest::kChunkBytes);
  for (std::uint64_t offset = 0; offset < file.bytes(); offset += buffer.size()) {
    const auto piece = std::span(buffer).first(static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), file.bytes() - offset)));
    file.read_at(offset, piece);
    builder.update(piece);
  }
  return builder.finish();
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::string path) : path_(std::move(path)) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();  // with it, a symbolic link would be followed
  const FolderHandle folder(path_);
  auto open = [&](const std::string& name) { return BoundedFile(kOperation, folder.fd(), name, path_ + "/" + name); };
  const auto manifest_file = open(std::string(kManifestFile));
  manifest_ = Manifest::from_text(manifest_file.read_all(Manifest::kMaxBytes), manifest_file.operation() + ": " + manifest_file.path());

  auto folder_name = std::filesystem::path(path_).filename().string();
  if (folder_name.starts_with(kReplacedPrefix)) folder_name.erase(0, kReplacedPrefix.size());
  if (const auto step = parse_step_folder_name(folder_name); step && *step != manifest_.step) {
    manifest_file.refuse("is that of step " + std::to_string(manifest_.step) + ": it does not belong into this folder");
  }
  for (const auto& [name, digest] : manifest_.files) {
    auto file = open(name);
    if (file.bytes() != digest.bytes)
      file.refuse("has " + std::to_string(file.bytes()) + " bytes, the manifest says " + std::to_string(digest.bytes),
                  "it was cut short or exchanged");
    if (name.ends_with(".safetensors")) {
      tensor_files_.emplace(name, SafetensorsFile(std::move(file)));
    } else {
      other_files_.emplace(name, std::move(file));
    }
  }
  check_slices();
}

void CheckpointFolder::check_slices() const {
  std::map<std::string, std::size_t> used;
  for (const auto& tensor : manifest_.tensors) {
    for (const auto& slice : tensor.slices) {
      const auto& file = tensor_files_.at(slice.file);
      const auto* entry = file.find(tensor.name);
      const auto what = "tensor " + printable(tensor.name);
      if (!entry) file.file().refuse(what + " is missing; the manifest says that it is here");
      if (entry->dtype != tensor.dtype) file.file().refuse(what + " has another dtype than the manifest says");
      if (entry->shape != slice.shape) file.file().refuse(what + " has another shape than the manifest says");
      ++used[slice.file];
    }
  }
  for (const auto& [name, file] : tensor_files_) {
    if (used[name] != file.entries().size()) {
      file.file().refuse("holds " + std::to_string(file.entries().size()) + " tensors, the manifest has " + std::to_string(used[name]) +
                         " slices in it");
    }
  }
}

void CheckpointFolder::compare(const BoundedFile& file, const std::string& name, const FileDigest& actual) const {
  const auto& stated = manifest_.files.at(name);
  if (actual == stated) return;
  const auto offset = stated.first_difference(actual);
  if (!offset) file.refuse("has another XXH3 than the manifest says");
  std::string where = "was changed between offsets " + std::to_string(*offset) + " and " +
                      std::to_string(std::min(*offset + FileDigest::kChunkBytes, file.bytes()));
  if (const auto tensors = tensor_files_.find(name); tensors != tensor_files_.end()) {
    for (const auto& entry : tensors->second.entries()) {
      if (entry.begin + entry.bytes <= *offset) continue;
      where += ", in or after tensor " + printable(entry.name);
      break;
    }
  }
  file.refuse(where + ": its XXH3 there is not the manifest's");
}

void CheckpointFolder::verify() const {
  for (const auto& [name, file] : tensor_files_) compare(file.file(), name, digest_of(file.file()));
  for (const auto& [name, file] : other_files_) compare(file, name, digest_of(file));
}

TrainingState CheckpointFolder::read() const {
  TrainingState state;
  state.step = manifest_.step;
  state.epoch = manifest_.epoch;
  state.step_in_epoch = manifest_.step_in_epoch;
  state.metadata = manifest_.metadata;
  for (std::int64_t rank = 0; rank < manifest_.ranks; ++rank) {
    const auto name = rank_state_file(rank);
    const auto& file = other_files_.at(name);
    auto text = file.read_all(kMaxRankStateBytes);
    DigestBuilder builder;
    builder.update(std::as_bytes(std::span(text)));
    compare(file, name, builder.finish());
    state.rank_state.push_back(std::move(text));
  }
  read_tensors(state);
  return state;
}

void CheckpointFolder::read_tensors(TrainingState& state) const {
  std::map<std::string_view, std::size_t> index;  // of a tensor in the manifest
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) {
    const auto& tensor = manifest_.tensors[i];
    index.emplace(tensor.name, i);
    state.tensors.emplace_back(tensor.name, empty_tensor(tensor.shape, tensor.dtype, std::string(kOperation) + ": " + path_));
  }
  // File by file and front to back, so that what is hashed is the file, and what is in memory is what was hashed.
  for (const auto& [name, file] : tensor_files_) {
    DigestBuilder builder;
    builder.update(file.head());
    for (const auto& entry : file.entries()) {
      const auto i = index.at(entry.name);
      const auto& tensor = manifest_.tensors[i];
      auto& whole = state.tensors[i].second;
      if (entry.shape == tensor.shape) {
        file.read_into(entry, whole);
        builder.update(bytes_of(whole));
        continue;
      }
      const auto part = file.read(entry);
      builder.update(bytes_of(part));
      const auto slice = std::find_if(tensor.slices.begin(), tensor.slices.end(),
                                      [&name = name](const TensorSlice& candidate) { return candidate.file == name; });
      auto target = whole;
      for (std::size_t d = 0; d < slice->shape.size(); ++d)
        target = target.narrow(static_cast<std::int64_t>(d), slice->offsets[d], slice->shape[d]);
      target.copy_(part);
    }
    compare(file.file(), name, builder.finish());
  }
}

}  // namespace troupe
