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

/// The first phase of a save, on every rank: writes the part into the attempt's folder and syncs it. The part is of no
/// use until a rank publishes the attempt. `live` and `live_written`: SafetensorsOptions's. Throws Error(io) with file
/// and cause, Error(usage) for a state that cannot be written. Any thread.
void write_checkpoint_part(const std::string& directory, const SaveAttempt& attempt, const CheckpointPart& part,
                           FileLayer& files = real_files(), std::size_t live = 0,
                           const std::function<void()>& live_written = {});

/// Makes checkpoints of parts, in a directory that it owns. If this process or the machine stops at any moment, a
/// reader finds the last complete checkpoint. One owner per directory, one thread.
class CheckpointWriter {
 public:
  /// Creates the directory, locks it against other writers, unless `lock` is there already, and removes the remains of
  /// killed runs, but for the folder of `under_way`. Throws Error(usage) for keep_last < 1, Error(unavailable) if
  /// another process keeps writing there for 5 s, Error(io).
  CheckpointWriter(std::string directory, std::int64_t keep_last, FileLayer& files = real_files(),
                   const SaveAttempt& under_way = {}, std::shared_ptr<FolderLock> lock = nullptr);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// The second phase, on one rank, once all `ranks` parts are written. It makes a checkpoint of them, step-<step>, and
  /// makes it `latest` and, on request, `best`; an older one of the same step is replaced. Else `best` names the best
  /// one of the branch that is saved, or goes. Then all but the newest keep_last, `latest` and `best` are removed.
  /// Finishes the work of another process that died meanwhile. Throws Error(io) with file and cause, Error(unavailable)
  /// for a part that this process can't see. After an error the earlier checkpoints are still there and good, and
  /// nothing half-written stays.
  SavedCheckpoint publish(const SaveAttempt& attempt, std::int64_t ranks, bool best);
  /// The attempt is given up.
  void give_up(const SaveAttempt& attempt) noexcept;

  /// Throws Error(io) if the directory was moved or removed: nothing is written to another that has its name.
  void require_folder() const;
  /// Removes the remains of failed saves, but for the folder of `under_way`. Throws as require_folder, and Error(io).
  void clear_leftovers(const SaveAttempt& under_way = {});

 private:
  std::string path(std::string_view name) const;
  std::string temporary(std::string_view name) const;
  Manifest finish_folder(const SaveAttempt& attempt, std::int64_t ranks);
  std::optional<Manifest> finished(const SaveAttempt& attempt, const std::string& folder) const;
  void rename_into_place(const std::string& folder, const std::string& name);
  void move(const std::string& from, const std::string& to);
  void sync_directory();
  void keep_best(const Manifest& manifest);
  void prune(std::int64_t latest);

  const std::string directory_;
  const std::int64_t keep_last_;
  FileLayer& files_;
  std::shared_ptr<FolderLock> lock_;
};

}  // namespace troupe
