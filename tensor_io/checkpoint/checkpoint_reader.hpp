#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/checkpoint/manifest.hpp"
#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// The largest state of a rank in a checkpoint.
inline constexpr std::uint64_t kMaxRankStateBytes = std::uint64_t{16} << 20;

/// Whether there is a checkpoint's manifest in the folder.
bool is_checkpoint(const std::string& folder);

/// A checkpoint that was not used, and why.
struct RefusedCheckpoint {
  std::string path;
  std::string reason;  ///< names file and cause
};

/// What a selector means, in the order in which it is to be tried.
struct CheckpointChoice {
  std::vector<std::string> paths;          ///< at least one
  std::vector<RefusedCheckpoint> refused;  ///< what was passed over already
  std::string asked;                       ///< for errors: the directory, where one of several will do; else empty
};

/// `selector` is
///   "latest"  what `directory`/latest names, then from the newest on
///   "best"    what `directory`/best names, or nothing
///   a path    that checkpoint, or nothing (also one of another directory, or a folder name in this one); a directory
///   of checkpoints: its latest
/// Throws Error(unavailable) where there is none, Error(bad_data) for a damaged `best`, Error(usage) for a path that
/// leads nowhere.
CheckpointChoice choose_checkpoint(const std::string& directory, const std::string& selector);
/// `error` was thrown for `path`, the one that is tried: notes it in `refused` and returns if another may be tried;
/// throws what is to be said otherwise.
void refuse_checkpoint(CheckpointChoice& choice, const std::string& path, const Error& error);

/// What `load_checkpoint` read.
struct LoadResult {
  TrainingState state;
  std::string path;                        ///< of the checkpoint that was read
  std::vector<RefusedCheckpoint> refused;  ///< newer ones that were not good, for the log
};

/// Reads a checkpoint, all of it or nothing: sizes, structure and hashes are checked, those of the tensors on the very
/// bytes that are handed out. `selector` as choose_checkpoint's. Throws Error(bad_data) with file and reason where none
/// is good. Any thread.
LoadResult load_checkpoint(const std::string& directory, const std::string& selector);

/// What `verify_checkpoint` found.
struct VerifiedCheckpoint {
  Manifest manifest;
  std::uint64_t bytes = 0;
};

/// Checks one checkpoint's folder as load_checkpoint does, in 1 MiB of memory. Throws Error(bad_data) or Error(io). Any
/// thread.
VerifiedCheckpoint verify_checkpoint(const std::string& path);

}  // namespace troupe
