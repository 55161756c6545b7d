#pragma once
#include <cstdint>
#include <string>

#include "tensor_io/file_layer.hpp"
#include "tensor_io/named_state.hpp"

namespace troupe {

struct SavedCheckpoint {
  std::string path;
  std::uint64_t bytes = 0;
  double seconds = 0;
  std::string warning;  ///< not empty: the checkpoint is good, but old ones could not be removed
};

/// Writes checkpoints into a directory of its own, so that a reader finds, whenever this process or the machine stops, the last one that
/// was complete. One owner per directory, one thread.
class CheckpointWriter {
 public:
  /// Creates the directory, locks it against other writers and clears away what a killed run left. Throws Error(usage) for keep_last < 1,
  /// Error(unavailable) if another process keeps writing there for 5 s, Error(io).
  CheckpointWriter(std::string directory, std::int64_t keep_last, FileLayer& files = real_files());
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  const std::string& directory() const noexcept { return directory_; }

  /// Writes `state` as step-<step>, makes it `latest` and, if so asked, `best`; an older one of the same step is replaced. Then all but the
  /// newest keep_last, `latest` and `best` are removed. Throws Error(io) with file and cause: what was there before is still there and
  /// good, and nothing half-written stays. Error(usage) for a state that cannot be written.
  SavedCheckpoint save(const TrainingState& state, bool best);

 private:
  std::string path(std::string_view name) const;
  std::string temporary(std::string_view name) const;
  void lock();
  void clear_leftovers();
  std::uint64_t write_folder(const TrainingState& state, const std::string& folder);
  void write_file(const std::string& path, std::string_view text, FileDigest* digest);
  void publish(const std::string& name, bool best);
  void move(const std::string& from, const std::string& to);
  void sync_directory();
  void prune(std::int64_t latest);

  const std::string directory_;
  const std::int64_t keep_last_;
  FileLayer& files_;
  int lock_fd_ = -1;
};

}  // namespace troupe
