#pragma once
#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch/launcher/coordinator_process.hpp"
#include "launch/network/job_keys.hpp"
#include "launch/process/child_process.hpp"
#include "launch/process/output_lines.hpp"

namespace troupe {

/// The coordinator's process, started again when it dies: the job's state is in the journal and in the ranks. What it
/// decides goes to standard error. Main thread.
class CoordinatorChild {
 public:
  struct Options {
    std::string troupe_program;
    CoordinatorProcessOptions process;  ///< without those that are this class's: life, journal, keys_on_stdin
    std::optional<JobKeys> keys;
    int starts_over = 0;  ///< how often the job has begun anew
  };
  /// Waits until it listens. Throws Error(unavailable) with what it said if it does not start.
  explicit CoordinatorChild(Options options);
  int port() const noexcept { return process_.port; }

  void add_fds(std::vector<pollfd>& fds) const;
  /// Shows what it said, `before_line` first; starts it again if it died, and does not wait for that. Throws
  /// Error(unavailable) if it cannot start.
  void step(const std::function<void()>& before_line);
  /// The job is over: shows its last words, and waits for its end, two seconds at most.
  void finish(const std::function<void()>& before_line);

 private:
  void start();
  void start_again(const std::string& reason, const std::function<void()>& before_line);
  void read_port();
  void drain(const std::function<void()>& before_line);

  CoordinatorProcessOptions process_;
  const Options options_;
  std::unique_ptr<ChildProcess> child_;
  OutputLines lines_;
  std::deque<std::chrono::steady_clock::time_point> starts_;
  int lives_ = 0;
  bool starting_ = false;  ///< it has not said its port yet
  bool silent_ = false;    ///< nor did it for too long
  std::string said_;
};

}  // namespace troupe
