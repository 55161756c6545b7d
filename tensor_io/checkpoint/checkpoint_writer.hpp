#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/checkpoint/manifest.hpp"
#include "tensor_io/files/file_layer.hpp"
#include "tensor_io/layout/named_state.hpp"

namespace troupe {

struct SavedCheckpoint {
  std::string path;
  std::uint64_t bytes = 0;
  double seconds = 0;
  std::string warning;  ///< not empty: the checkpoint is good, but old ones could not be removed
};

/// The first phase of a save, on every rank: writes the part into the attempt's folder and syncs it. It is worth
/// nothing until somebody publishes the attempt. `live` and `live_written`: SafetensorsOptions's. Throws Error(io) with
/// file and cause, Error(usage) for a state that cannot be written. Any thread.
void write_checkpoint_part(const std::string& directory, const SaveAttempt& attempt, const CheckpointPart& part,
                           FileLayer& files = real_files(), std::size_t live = 0,
                           const std::function<void()>& live_written = {});

/// Makes checkpoints of parts, in a directory of its own, so that a reader finds, whenever this process or the machine
/// stops, the last one that was complete. One owner per directory, one thread.
class CheckpointWriter {
 public:
  /// Creates the directory, locks it against other writers, unless `lock` is there already, and clears away what a
  /// killed run left, but for the folder of `under_way`. Throws Error(usage) for keep_last < 1, Error(unavailable) if
  /// another process keeps writing there for 5 s, Error(io).
  CheckpointWriter(std::string directory, std::int64_t keep_last, FileLayer& files = real_files(),
                   const SaveAttempt& under_way = {}, std::shared_ptr<FolderLock> lock = nullptr);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// The second phase, on one rank, once all `ranks` parts are written: makes a checkpoint of them, step-<step>, makes
  /// it `latest` and, if so asked, `best`; an older one of the same step is replaced. Then all but the newest
  /// keep_last, `latest` and `best` are removed. Finishes what another process began before it died. Throws Error(io)
  /// with file and cause, Error(unavailable) for a part that is not to be seen from here: what was there before is
  /// still there and good, and nothing half-written stays.
  SavedCheckpoint publish(const SaveAttempt& attempt, std::int64_t ranks, bool best);
  /// Nothing will come of it.
  void give_up(const SaveAttempt& attempt) noexcept;

  /// Removes what saves left that failed, but for the folder of `under_way`.
  void clear_leftovers(const SaveAttempt& under_way = {});

 private:
  std::string path(std::string_view name) const;
  std::string temporary(std::string_view name) const;
  std::uint64_t finish_folder(const SaveAttempt& attempt, std::int64_t ranks);
  std::optional<Manifest> finished(const SaveAttempt& attempt, const std::string& folder) const;
  void rename_into_place(const std::string& folder, const std::string& name);
  void move(const std::string& from, const std::string& to);
  void sync_directory();
  void prune(std::int64_t latest);

  const std::string directory_;
  const std::int64_t keep_last_;
  FileLayer& files_;
  std::shared_ptr<FolderLock> lock_;
};

}  // namespace troupe
