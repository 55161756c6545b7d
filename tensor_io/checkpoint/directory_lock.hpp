#pragma once
#include <string>

#include "tensor_io/files/folder_lock.hpp"

namespace troupe {

/// A directory that one job at a time may write checkpoints to, by the file .lock in it.
class DirectoryLock {
 public:
  /// Creates the directory where it is missing; touches nothing else in it. Throws Error(unavailable) if another
  /// process keeps it for 5 s, Error(io).
  explicit DirectoryLock(const std::string& directory);
  void sign() const { lock_.sign(); }

 private:
  const FolderLock lock_;
};

}  // namespace troupe
