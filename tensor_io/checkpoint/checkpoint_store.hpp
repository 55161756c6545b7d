#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The contents of a directory of checkpoints:
///
///     step-00001200/      a checkpoint: manifest.json, rank-*.safetensors, rank-*.json
///     latest, best        the name of a checkpoint and its XXH3; `latest` is renamed into place last
///     .tmp-…              being written (ranks write parts to `.tmp-step-00001200.<attempt>`), or being removed
///     .old-step-00001200  the former step-00001200, while a new one takes its place
namespace troupe {

class FolderLock;

/// Locks a directory that one job at a time may write checkpoints to, and creates it if it is missing; touches nothing
/// in it. It makes a file, .lock, only if the file system knows no flock. Throws Error(unavailable) if another process
/// keeps it for 5 s, Error(io).
std::shared_ptr<FolderLock> lock_directory(const std::string& directory);

/// `step-00001200`.
std::string step_folder_name(std::int64_t step);
/// The step of a folder `step-00001200`; nothing for another name.
std::optional<std::int64_t> parse_step_folder_name(std::string_view name);

/// A checkpoint's manifest.
inline constexpr std::string_view kManifestFile = "manifest.json";
/// The beginning of the name of a folder that is being written or removed.
inline constexpr std::string_view kTemporaryPrefix = ".tmp-";
/// The beginning of the name of a checkpoint that is being replaced.
inline constexpr std::string_view kReplacedPrefix = ".old-";

/// One try to save a step; ranks write their parts into its folder until one of them publishes it.
struct SaveAttempt {
  std::int64_t step = 0;
  std::string id;  ///< letters, digits and `-`: another one for every try, the same on all ranks

  bool operator==(const SaveAttempt&) const = default;
  /// `.tmp-step-00001200.<id>`
  std::string folder_name() const;
};

/// A checkpoint in a directory.
struct CheckpointEntry {
  std::int64_t step = 0;
  std::string path;  ///< the folder; one that is being replaced counts if the new one is not there yet
};

/// The checkpoints of a directory, unchecked, sorted by step. A directory that does not exist has none. Throws
/// Error(io).
std::vector<CheckpointEntry> list_checkpoints(const std::string& directory);

/// In the order in which they are tried and kept: up to `latest` from the newest on, then those above it, which a run
/// that was given up has left. Without a `latest` simply from the newest on. A pure function.
std::vector<CheckpointEntry> newest_first(std::vector<CheckpointEntry> checkpoints, std::optional<std::int64_t> latest);

/// The content of `latest` and `best`.
std::string pointer_text(std::int64_t step);
/// The step that `directory`/`name` points to; nothing if that file is missing; Error(bad_data) if it is
/// damaged.
std::optional<std::int64_t> read_pointer(const std::string& directory, const std::string& name);
/// Of `latest`; nothing if that file is missing, or damaged.
std::optional<std::int64_t> latest_step(const std::string& directory);
/// The latest step in `directory`, if another rank has saved it since it was `known`, and it is later than `step`.
std::optional<std::int64_t> saved_meanwhile(const std::string& directory, std::int64_t step,
                                            std::optional<std::int64_t> known);
/// Resolves a user's path to a checkpoint or a model: links are followed, and a file that names a checkpoint
/// (`checkpoints/best`) means that one. Throws Error(bad_data) if that name is damaged, or leads nowhere.
std::string path_meant(const std::string& path);

}  // namespace troupe
