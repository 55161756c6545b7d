#pragma once
#include <chrono>
#include <string>
#include <thread>

namespace troupe {

/// A folder that one job at a time may use. Locked by flock: free at once when the holder ends, in whatever way. If the
/// file system knows no flock, the holder signs a file in the folder and touches it every `beat`. The folder is free
/// `stale` after the last time, at once after an orderly end. Any thread, one at a time.
class FolderLock {
 public:
  struct Options {
    std::chrono::milliseconds patience{0};  ///< waits this long for a holder that may be ending
    std::chrono::milliseconds beat{5'000}, stale{30'000};
    int (*flock)(int file, int operation) = nullptr;  ///< the system's, unless a test has another
  };

  /// flock is on `target`: the folder itself, or a file in it, made if it is missing. `file`: the signed one, not
  /// touched before. The user sees `folder`. Throws Error(unavailable) if another process has it, with its signature
  /// and `remedy`; Error(io).
  FolderLock(const std::string& target, const std::string& file, const std::string& folder, const std::string& remedy,
             Options options);
  FolderLock(const std::string& target, const std::string& file, const std::string& folder, const std::string& remedy)
      : FolderLock(target, file, folder, remedy, Options()) {}
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Writes host, process and time into the file, for processes that are refused. On a full disk it stays empty.
  void sign() const;
  /// Whether `path` leads to what flock is on. False: it was renamed or removed, or another folder has its name.
  bool is_at(const std::string& path) const;

 private:
  enum class Answer { ours, held, unknown };
  Answer lock() const;
  bool is_stale() const;
  std::string signature() const;
  bool take_over() const;
  void keep_touching();

  const std::string file_, name_;
  const Options options_;
  int fd_ = -1;
  std::jthread beat_;  // if flock is not known
};

[[noreturn]] void refuse_moved(const std::string& folder);
/// Before a job writes to a folder that it has `held` so far, a FolderLock or a HeldFolder. Throws Error(io) if the
/// folder was moved, so that nothing comes into another one of its name.
template <class Held>
void require_at(const Held& held, const std::string& folder) {
  if (!held.is_at(folder)) refuse_moved(folder);
}

/// A folder that this process knows again after a rename, without a lock. Any thread.
class HeldFolder {
 public:
  /// Throws Error(io).
  explicit HeldFolder(const std::string& path);
  ~HeldFolder();
  HeldFolder(const HeldFolder&) = delete;
  HeldFolder& operator=(const HeldFolder&) = delete;
  /// As FolderLock's.
  bool is_at(const std::string& path) const;

 private:
  const int fd_;
};

}  // namespace troupe
