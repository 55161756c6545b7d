#pragma once
#include <string>

#include "tensor_io/files/folder_lock.hpp"

namespace troupe {

/// A directory that one job at a time may write checkpoints to: a FolderLock on itself. A file, .lock, is in it only
/// where the file system knows no flock.
class DirectoryLock {
 public:
  /// Creates the directory where it is missing; touches nothing in it. Throws Error(unavailable) if another
  /// process keeps it for 5 s, Error(io).
  explicit DirectoryLock(const std::string& directory);

 private:
  const FolderLock lock_;
};

}  // namespace troupe
