#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace troupe {

/// A checkpoint that is on disk.
struct SavedStep {
  std::int64_t step = 0;
  std::string path;
};

/// The command's end for a checkpoint.
struct AfterSaveEnd {
  std::int64_t step = 0;
  bool succeeded = false;
  std::string text;  ///< for the user: exit code, or the reason of its end, and its last line of output
};

/// Runs a command of the user for each checkpoint, through /bin/sh, one at a time, on a thread that is the command's
/// parent. A checkpoint that comes while it runs waits; a newer one replaces the one that waits.
///
/// The command has TROUPE_CHECKPOINT, TROUPE_STEP and TROUPE_RUN_DIR, and nothing of the job in its environment, so
/// that it may start a program of Troupe. It is in a process group, inherits no descriptor and dies with this process.
class AfterSave {
 public:
  using Milliseconds = std::chrono::milliseconds;
  struct Options {
    std::string command;
    Milliseconds timeout{600'000};  ///< of one run; then its process group is ended
    std::string run_dir;
    std::function<void()> still_runs = [] {};  ///< called by wait(), now and every 20 s while it waits
  };
  explicit AfterSave(Options options) : options_(std::move(options)) {}
  /// Ends the command if it still runs; a waiting one is not run.
  ~AfterSave();
  AfterSave(const AfterSave&) = delete;
  AfterSave& operator=(const AfterSave&) = delete;

  /// Any thread; does not wait.
  void add(SavedStep saved);
  /// The runs that have ended since the last call. Any thread.
  std::vector<AfterSaveEnd> take_ended();
  /// Waits until none runs and none waits: each run has its timeout.
  void wait();

 private:
  void work();
  AfterSaveEnd run(const SavedStep& saved);
  bool stopping();

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<SavedStep> waiting_;  // guarded by mutex_, as the next three
  std::vector<AfterSaveEnd> ended_;
  bool running_ = false, stopping_ = false;
  std::thread thread_;  // begins with the first checkpoint
};

}  // namespace troupe
