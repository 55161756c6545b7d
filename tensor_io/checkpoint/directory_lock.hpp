#pragma once
#include <string>

namespace troupe {

/// A directory that one job at a time may write checkpoints to, locked by flock: free at once when the process ends.
class DirectoryLock {
 public:
  /// Creates the directory where it is missing; touches nothing in it. Throws Error(unavailable) if another process
  /// keeps it for 5 s, Error(io).
  explicit DirectoryLock(const std::string& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace troupe
