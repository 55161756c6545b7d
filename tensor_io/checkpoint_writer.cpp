#include "tensor_io/checkpoint_writer.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "tensor_io/bounded_file.hpp"
#include "tensor_io/checkpoint_directory.hpp"
#include "tensor_io/checkpoint_reader.hpp"
#include "tensor_io/error.hpp"
#include "tensor_io/manifest.hpp"
#include "tensor_io/safetensors.hpp"

namespace troupe {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

constexpr auto kLockDeadline = 5s;

bool exists(const std::string& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

void check_state(const TrainingState& state) {
  auto refuse = [](const std::string& why) { throw Error(ErrorCode::usage, "writing a checkpoint", why); };
  if (state.step < 0 || state.epoch < 0 || state.step_in_epoch < 0) refuse("step, epoch and step_in_epoch count from 0");
  if (state.rank_state.size() > Manifest::kMaxRanks) refuse("more rank states than ranks can be");
  for (std::size_t rank = 0; rank < state.rank_state.size(); ++rank) {
    if (state.rank_state[rank].size() > kMaxRankStateBytes)
      refuse("the state of rank " + std::to_string(rank) + " has " + std::to_string(state.rank_state[rank].size()) + " bytes");
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string directory, std::int64_t keep_last, FileLayer& files)
    : directory_(std::move(directory)), keep_last_(keep_last), files_(files) {
  if (keep_last_ < 1)
    throw Error(ErrorCode::usage, "writing checkpoints to " + directory_, "keep_last is " + std::to_string(keep_last_),
                "at least 1 checkpoint must stay");
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) throw_io_error("creating the checkpoint directory", directory_, error.value());
  lock();
  try {
    clear_leftovers();
  } catch (...) {
    ::close(lock_fd_);
    throw;
  }
}

CheckpointWriter::~CheckpointWriter() { ::close(lock_fd_); }

std::string CheckpointWriter::path(std::string_view name) const { return (fs::path(directory_) / name).string(); }
std::string CheckpointWriter::temporary(std::string_view name) const { return path(std::string(kTemporaryPrefix) + std::string(name)); }

void CheckpointWriter::lock() {
  lock_fd_ = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_fd_ < 0) throw_io_error("opening the checkpoint directory", directory_, errno);
  // A rank that was killed a moment ago may still hold the lock.
  const auto deadline = std::chrono::steady_clock::now() + kLockDeadline;
  while (::flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return;  // a file system without locks
    if (std::chrono::steady_clock::now() > deadline) {
      ::close(lock_fd_);
      throw Error(ErrorCode::unavailable, "writing checkpoints to " + directory_, "another job writes its checkpoints there",
                  "give each job a checkpoint_dir of its own");
    }
    std::this_thread::sleep_for(20ms);
  }
}

void CheckpointWriter::clear_leftovers() {
  std::vector<std::string> names;
  std::error_code error;
  for (auto entry = fs::directory_iterator(directory_, error); !error && entry != fs::directory_iterator(); entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error) throw_io_error("listing", directory_, error.value());
  for (const auto& name : names) {
    const std::string_view view = name;
    const auto is_ours = [](std::string_view rest) { return rest.starts_with("step-") || rest == "latest" || rest == "best"; };
    if (view.starts_with(kTemporaryPrefix) && is_ours(view.substr(kTemporaryPrefix.size()))) remove_tree(files_, path(name));
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

void CheckpointWriter::write_file(const std::string& path, std::string_view text, FileDigest* digest) {
  DurableFile file(files_, path);
  file.append(text);
  auto written = file.finish();
  if (digest) *digest = std::move(written);
}

std::uint64_t CheckpointWriter::write_folder(const TrainingState& state, const std::string& folder) {
  if (files_.make_directory(folder) != 0) throw_io_error("creating", folder, errno);
  Manifest manifest;
  manifest.step = state.step;
  manifest.epoch = state.epoch;
  manifest.step_in_epoch = state.step_in_epoch;
  manifest.ranks = static_cast<std::int64_t>(state.rank_state.size());
  manifest.metadata = state.metadata;

  const auto tensor_file = rank_tensor_file(0);
  {
    DurableFile file(files_, folder + "/" + tensor_file);
    write_safetensors(file, state.tensors, {{"step", std::to_string(state.step)}});
    manifest.files[tensor_file] = file.finish();
  }
  for (const auto& [name, tensor] : state.tensors) {
    const auto shape = tensor.sizes().vec();
    manifest.tensors.push_back({name, tensor.scalar_type(), shape, {{tensor_file, std::vector<std::int64_t>(shape.size(), 0), shape}}});
  }
  for (std::int64_t rank = 0; rank < manifest.ranks; ++rank) {
    const auto name = rank_state_file(rank);
    write_file(folder + "/" + name, state.rank_state[static_cast<std::size_t>(rank)], &manifest.files[name]);
  }
  const auto text = manifest.to_text();
  write_file(folder + "/" + std::string(kManifestFile), text, nullptr);
  if (files_.sync_directory(folder) != 0) throw_io_error("syncing", folder, errno);
  std::uint64_t bytes = text.size();
  for (const auto& [name, digest] : manifest.files) bytes += digest.bytes;
  return bytes;
}

SavedCheckpoint CheckpointWriter::save(const TrainingState& state, bool best) {
  const auto start = std::chrono::steady_clock::now();
  check_state(state);
  const auto name = step_folder_name(state.step);
  const auto pointer = pointer_text(state.step);
  SavedCheckpoint saved;
  saved.path = path(name);
  try {
    clear_leftovers();  // of a save that failed
    saved.bytes = write_folder(state, temporary(name));
    // Before anything is renamed: what needs space is written by then.
    if (best) write_file(temporary("best"), pointer, nullptr);
    write_file(temporary("latest"), pointer, nullptr);
    publish(name, best);
  } catch (...) {
    for (const auto leftover : {std::string_view(name), std::string_view("latest"), std::string_view("best")}) {
      try {
        remove_tree(files_, temporary(leftover));
      } catch (const Error&) {
        // The first error is the one to report; the next save, or the next start, tries again to remove it.
      }
    }
    throw;
  }
  try {
    remove_tree(files_, path(std::string(kReplacedPrefix) + name));
    prune(state.step);
  } catch (const Error& error) {
    saved.warning = error.what();
  }
  saved.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return saved;
}

void CheckpointWriter::publish(const std::string& name, bool best) {
  const auto in_place = path(name), replaced = path(std::string(kReplacedPrefix) + name);
  const bool replaces = exists(in_place);
  if (replaces) {
    remove_tree(files_, replaced);
    move(in_place, replaced);
  }
  try {
    move(temporary(name), in_place);
  } catch (...) {
    if (replaces) files_.rename(replaced, in_place);  // if this fails, too, readers find it under its other name
    throw;
  }
  sync_directory();
  if (best) move(temporary("best"), path("best"));
  move(temporary("latest"), path("latest"));
  sync_directory();
}

void CheckpointWriter::prune(std::int64_t latest) {
  const auto best = read_pointer(directory_, "best");  // a damaged one throws: better to keep too much than to lose the best
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
