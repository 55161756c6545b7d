#pragma once
#include <memory>
#include <string>
#include <utility>

#include "tensor_io/files/folder_lock.hpp"

namespace troupe {

/// A run's folder, which one living job at a time may have: by a FolderLock on the file `lock` in it.
class RunLock {
 public:
  /// Does nothing yet. `is_new`: the folder was chosen for this run, and the user gets its name. `begins`: a new run,
  /// which is refused another's records. An empty name is no folder.
  explicit RunLock(std::string folder, bool is_new = false, bool begins = false)
      : folder_(std::move(folder)), is_new_(is_new), begins_(begins) {}
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Makes the folder and locks it; later calls do nothing. One thread. Throws Error(unavailable) if another job has
  /// it, with host and process, Error(usage) for runs/latest itself and for another run's records, Error(io).
  void take();
  /// The job has ended by a mistake of the user. Removes the folder if take() made it for this run, and it has only
  /// logs with the refusal of a setting, which is on the screen.
  void remove_unused();
  /// How the job ended, as the second line of `lock`, until the next job takes the folder. Nothing without take().
  void note_exit(int code);

 private:
  const std::string folder_;
  const bool is_new_, begins_;
  std::unique_ptr<FolderLock> lock_;
};

/// Lets runs/latest, a relative symbolic link, point to `folder`, if that lies in runs/. `slot`: several processes may
/// do it at once. A problem is one line on standard error.
void point_latest_to(const std::string& folder, int slot);

/// Throws Error(usage) if `folder` holds the records of a run, metrics.jsonl. A run that failed before its first record
/// has left none.
void refuse_records_in(const std::string& folder);

}  // namespace troupe
