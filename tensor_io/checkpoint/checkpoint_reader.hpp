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

/// A checkpoint that was not used, with the reason.
struct RefusedCheckpoint {
  std::string path;
  std::string reason;  ///< names file and cause
};

/// The checkpoints for a selector, in the order in which they are to be tried.
struct CheckpointChoice {
  std::vector<std::string> paths;          ///< at least one
  std::vector<RefusedCheckpoint> refused;  ///< those passed over already
  std::string asked;                       ///< for errors: the directory, if one of several will do; else empty
};

/// `selector` is
///   "latest"  the one that `directory`/latest names, then from the newest on
///   "best"    the one that `directory`/best names, or nothing
///   a path    that checkpoint, or nothing (also one of another directory, or a folder name in this one);
///             a directory of checkpoints: its latest
/// Throws Error(unavailable) if there is none, Error(bad_data) for a damaged `best`, Error(usage) for a path that
/// leads nowhere.
CheckpointChoice choose_checkpoint(const std::string& directory, const std::string& selector);
/// `error` was thrown for `path`, the present try. Notes it in `refused` and returns if another may be tried; else
/// throws the error for the user.
void refuse_checkpoint(CheckpointChoice& choice, const std::string& path, const Error& error);

/// The result of `load_checkpoint`.
struct LoadResult {
  TrainingState state;
  std::string path;                        ///< of the checkpoint that was read
  std::vector<RefusedCheckpoint> refused;  ///< newer ones that were not good, for the log
};

/// Reads a checkpoint, all of it or nothing: sizes, structure and hashes are checked, those of the tensors on the same
/// bytes that are returned. `selector` as in choose_checkpoint. Throws Error(bad_data) with file and reason if none is
/// good. Any thread.
LoadResult load_checkpoint(const std::string& directory, const std::string& selector);

/// The result of `verify_checkpoint`.
struct VerifiedCheckpoint {
  Manifest manifest;
  std::uint64_t bytes = 0;
};

/// Checks one checkpoint's folder as load_checkpoint does, in 1 MiB of memory. Throws Error(bad_data) or Error(io). Any
/// thread.
VerifiedCheckpoint verify_checkpoint(const std::string& path);

}  // namespace troupe
