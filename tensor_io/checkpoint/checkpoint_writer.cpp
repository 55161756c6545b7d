#include "tensor_io/checkpoint/checkpoint_writer.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/checkpoint/best_checkpoint.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/checkpoint/manifest.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/files/bounded_file.hpp"
#include "tensor_io/files/folder_lock.hpp"

namespace troupe {

namespace fs = std::filesystem;

namespace {

bool exists(const std::string& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

void check_part(const CheckpointPart& part) {
  auto refuse = [](const std::string& why) { throw Error(ErrorCode::usage, "writing a checkpoint", why); };
  if (part.step < 0 || part.epoch < 0 || part.step_in_epoch < 0) refuse("step, epoch and step_in_epoch count from 0");
  if (part.ranks > static_cast<std::int64_t>(Manifest::kMaxRanks)) refuse("there are too many ranks");
  if (part.rank_state.size() > kMaxRankStateBytes)
    refuse("the state of rank " + std::to_string(part.rank) + " has " + std::to_string(part.rank_state.size()) +
           " bytes");
}

void write_file(FileLayer& files, const std::string& path, std::string_view text, FileDigest* digest = nullptr) {
  DurableFile file(files, path);
  file.append(text);
  auto written = file.finish();
  if (digest) *digest = std::move(written);
}

std::uint64_t bytes_of(const Manifest& manifest, const std::string& folder) {
  std::error_code error;
  std::uint64_t bytes = fs::file_size(folder + "/" + std::string(kManifestFile), error);
  for (const auto& [name, digest] : manifest.files) bytes += digest.bytes;
  return bytes;
}

}  // namespace

void write_checkpoint_part(const std::string& directory, const SaveAttempt& attempt, const CheckpointPart& part,
                           FileLayer& files, std::size_t live, const std::function<void()>& live_written) {
  check_part(part);
  const auto folder = (fs::path(directory) / attempt.folder_name()).string();
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) throw_io_error("creating the checkpoint directory", directory, error.value());
  // Whichever rank comes first.
  if (files.make_directory(folder) != 0 && errno != EEXIST) throw_io_error("creating", folder, errno);
  Manifest manifest;
  manifest.step = part.step;
  manifest.epoch = part.epoch;
  manifest.step_in_epoch = part.step_in_epoch;
  manifest.ranks = part.ranks;
  manifest.metadata = part.metadata;
  manifest.attempt = attempt.id;
  // Rank 0's is always there, so that a reader finds at least one.
  if (!part.tensors.empty() || part.rank == 0) {
    const auto name = rank_tensor_file(part.rank);
    DurableFile file(files, folder + "/" + name);
    write_safetensors(file, part.tensors, {{{"step", std::to_string(part.step)}}, part.hashes, live, live_written});
    manifest.files[name] = file.finish();
    for (const auto& tensor : part.tensors)
      manifest.tensors.push_back(
          {tensor.name, tensor.dtype, tensor.global_shape, {{name, tensor.offsets, tensor.shape}}});
  } else if (live_written) {
    live_written();
  }
  const auto name = rank_state_file(part.rank);
  write_file(files, folder + "/" + name, part.rank_state, &manifest.files[name]);
  write_file(files, folder + "/" + rank_part_file(part.rank), manifest.to_text(Manifest::Kind::part));
}

CheckpointWriter::CheckpointWriter(std::string directory, std::int64_t keep_last, FileLayer& files,
                                   const SaveAttempt& under_way, std::shared_ptr<FolderLock> lock)
    : directory_(std::move(directory)), keep_last_(keep_last), files_(files), lock_(std::move(lock)) {
  if (keep_last_ < 1)
    throw Error(ErrorCode::usage, "writing checkpoints to " + directory_, "keep_last is " + std::to_string(keep_last_),
                "set it to 1 or more");
  if (!lock_) lock_ = lock_directory(directory_);
  if (lock_->is_at(directory_)) clear_leftovers(under_way);  // else each save says so
}

std::string CheckpointWriter::path(std::string_view name) const { return (fs::path(directory_) / name).string(); }
std::string CheckpointWriter::temporary(std::string_view name) const {
  return path(std::string(kTemporaryPrefix) + std::string(name));
}

void CheckpointWriter::require_folder() const { require_at(*lock_, directory_); }

void CheckpointWriter::clear_leftovers(const SaveAttempt& under_way) {
  require_folder();
  for (const auto& name : names_in(directory_)) {
    const std::string_view view = name;
    const auto is_ours = [](std::string_view rest) {
      return rest.starts_with("step-") || rest == "latest" || rest == "best";
    };
    if (view.starts_with(kTemporaryPrefix) && is_ours(view.substr(kTemporaryPrefix.size())) &&
        name != under_way.folder_name()) {
      try {
        remove_tree(files_, path(name));
      } catch (const Error&) {
        // A rank that has not heard of a failed save may still write there; the next save tries again.
      }
    }
    if (view.starts_with(kReplacedPrefix) && parse_step_folder_name(view.substr(kReplacedPrefix.size()))) {
      const auto in_place = path(view.substr(kReplacedPrefix.size()));
      if (exists(in_place)) {
        sync_directory();  // the new one has its name for good before the old one goes
        remove_tree(files_, path(name));
      } else {
        move(path(name), in_place);
      }
    }
  }
}

void CheckpointWriter::move(const std::string& from, const std::string& to) {
  if (files_.rename(from, to) != 0) throw_io_error("renaming " + from + " to", to, errno);
}

void CheckpointWriter::sync_directory() {
  if (files_.sync_directory(directory_) != 0) throw_io_error("syncing", directory_, errno);
}

// The manifest of an attempt that somebody finished before they died.
std::optional<Manifest> CheckpointWriter::finished(const SaveAttempt& attempt, const std::string& folder) const {
  try {
    const BoundedFile file("reading the checkpoint", folder + "/" + std::string(kManifestFile));
    auto manifest = Manifest::from_text(file.read_all(Manifest::kMaxBytes), file.operation());
    if (manifest.attempt == attempt.id) return manifest;
  } catch (const Error&) {
    // Not there, or half-written.
  }
  return std::nullopt;
}

// What the ranks wrote becomes a checkpoint's folder that lacks nothing but its name.
Manifest CheckpointWriter::finish_folder(const SaveAttempt& attempt, std::int64_t ranks) {
  const auto folder = path(attempt.folder_name());
  auto manifest = finished(attempt, folder);
  if (!manifest) {
    std::vector<Manifest> parts;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto part = folder + "/" + rank_part_file(rank);
      if (!exists(part)) {
        throw Error(
            ErrorCode::unavailable, "writing a checkpoint",
            "rank " + std::to_string(rank) + " has written its part, but this host does not see it in " + folder,
            "put checkpoint_dir on a file system that all hosts share");
      }
      const BoundedFile file("reading a part of the checkpoint", part);
      parts.push_back(Manifest::from_text(file.read_all(Manifest::kMaxBytes), file.operation() + ": " + part,
                                          Manifest::Kind::part));
    }
    const auto where = "writing a checkpoint: " + folder;
    const auto text = merge_manifests(std::move(parts), where).to_text();
    manifest = Manifest::from_text(text, where);  // are the parts together the whole?
    for (const auto& [name, digest] : manifest->files) {
      std::error_code error;
      const auto size = fs::file_size(folder + "/" + name, error);
      if (error || size != digest.bytes)
        throw Error(ErrorCode::io, "writing a checkpoint", folder + "/" + name + " is not what its rank wrote",
                    "check that the disk is not full, and that all hosts share it");
    }
    remove_tree(files_, folder + "/" + std::string(kManifestFile));
    write_file(files_, folder + "/" + std::string(kManifestFile), text);
  }
  for (std::int64_t rank = 0; rank < ranks; ++rank) remove_tree(files_, folder + "/" + rank_part_file(rank));
  if (files_.sync_directory(folder) != 0) throw_io_error("syncing", folder, errno);
  return *manifest;
}

// Before a save that is not the best one is renamed into place, so that `best` never names other weights: it names the
// best one of the branch that is saved. An older manifest does not say which that is.
void CheckpointWriter::keep_best(const Manifest& manifest) {
  std::optional<std::int64_t> named;
  try {
    named = read_pointer(directory_, "best");
  } catch (const Error&) {
    return;  // a damaged one: prune says so, and removes nothing
  }
  const auto best = best_beside(directory_, manifest.step, manifest.metadata);
  if (!best.is_known && named && *named < manifest.step) return;
  if (best.step == named || best.step == manifest.step) return;
  if (best.step) {
    write_file(files_, temporary("best"), pointer_text(*best.step));
    move(temporary("best"), path("best"));
  } else {
    remove_tree(files_, path("best"));
  }
  sync_directory();
}

SavedCheckpoint CheckpointWriter::publish(const SaveAttempt& attempt, std::int64_t ranks, bool best) {
  const auto start = std::chrono::steady_clock::now();
  const auto name = step_folder_name(attempt.step);
  const auto pointer = pointer_text(attempt.step);
  SavedCheckpoint saved;
  saved.path = path(name);
  try {
    clear_leftovers(attempt);
    // Unless somebody who died afterwards gave it its name.
    auto manifest = exists(path(attempt.folder_name())) ? std::nullopt : finished(attempt, saved.path);
    const bool is_new = !manifest;
    if (is_new) {
      manifest = finish_folder(attempt, ranks);
      saved.bytes = bytes_of(*manifest, path(attempt.folder_name()));
    }
    require_folder();
    // Before anything is renamed: what needs space is written by then.
    if (best) write_file(files_, temporary("best"), pointer);
    write_file(files_, temporary("latest"), pointer);
    if (!best) keep_best(*manifest);
    if (is_new) rename_into_place(path(attempt.folder_name()), name);
    sync_directory();
    if (best) move(temporary("best"), path("best"));
    move(temporary("latest"), path("latest"));
    sync_directory();
  } catch (...) {
    give_up(attempt);
    throw;
  }
  try {
    require_folder();
    remove_tree(files_, path(std::string(kReplacedPrefix) + name));
    prune(attempt.step);
  } catch (const Error& error) {
    saved.warning = error.what();
  }
  saved.seconds = seconds_since(start);
  return saved;
}

void CheckpointWriter::give_up(const SaveAttempt& attempt) noexcept {
  if (!lock_->is_at(directory_)) return;
  for (const auto& leftover :
       {attempt.folder_name(), std::string(kTemporaryPrefix) + "latest", std::string(kTemporaryPrefix) + "best"}) {
    try {
      remove_tree(files_, path(leftover));
    } catch (const Error&) {
      // The first error is the one to report; the next save, or the next start, tries again to remove it.
    }
  }
}

void CheckpointWriter::rename_into_place(const std::string& folder, const std::string& name) {
  const auto in_place = path(name), replaced = path(std::string(kReplacedPrefix) + name);
  const bool replaces = exists(in_place);
  if (replaces) {
    remove_tree(files_, replaced);
    move(in_place, replaced);
  }
  try {
    move(folder, in_place);
  } catch (...) {
    if (replaces) files_.rename(replaced, in_place);  // if this fails, too, readers find it under its other name
    throw;
  }
}

void CheckpointWriter::prune(std::int64_t latest) {
  const auto best =
      read_pointer(directory_, "best");  // a damaged one throws: better to keep too much than to lose the best
  const auto checkpoints = newest_first(list_checkpoints(directory_), latest);
  for (std::size_t i = static_cast<std::size_t>(keep_last_); i < checkpoints.size(); ++i) {
    if (best && *best == checkpoints[i].step) continue;
    // Gone at once for readers, then file by file.
    const auto doomed = temporary(step_folder_name(checkpoints[i].step));
    remove_tree(files_, doomed);
    move(checkpoints[i].path, doomed);
    remove_tree(files_, doomed);
  }
}

}  // namespace troupe
