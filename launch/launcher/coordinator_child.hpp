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

/// The coordinator's process, started again when it dies: the job's state is in the journal and in the ranks. Its
/// decisions go to standard error. Main thread.
class CoordinatorChild {
 public:
  struct Options {
    std::string troupe_program;
    CoordinatorProcessOptions process;  ///< without this class's own: life, journal, keys_on_stdin
    std::optional<JobKeys> keys;
    int starts_over = 0;  ///< how often the job has begun anew
  };
  /// Waits until it listens. Throws Error(unavailable) with its output if it does not start.
  explicit CoordinatorChild(Options options);
  int port() const noexcept { return port_; }

  void add_fds(std::vector<pollfd>& fds) const;
  /// Shows its output, `before_line` first. Starts it again if it died, or was silent for 3 s in which this was called,
  /// and does not wait for that. One that does not start is tried again, with longer and longer pauses: the ranks train
  /// on meanwhile, and save when they have waited for `park_after`. Throws Error(unavailable) if the job's first cannot
  /// start.
  void step(const std::function<void()>& before_line);
  /// The job is over: shows its last lines, and waits for its end, two seconds at most.
  void finish(const std::function<void()>& before_line);

 private:
  void start();
  void start_again(const std::string& reason, const std::function<void()>& before_line);
  void read_words();
  void take_port(const std::string& line);
  void look_for_silence(const std::function<void()>& before_line);
  void drain(const std::function<void()>& before_line);

  CoordinatorProcessOptions process_;
  int port_ = 0;  ///< the job's, by which its processes find the coordinator, wherever it listens (coordinator_port)
  const Options options_;
  std::unique_ptr<ChildProcess> child_;
  OutputLines lines_;
  std::deque<std::chrono::steady_clock::time_point> starts_;
  int lives_ = 0;
  bool starting_ = false;                                            ///< it has not reported its port yet
  int failures_ = 0;                                                 ///< failed starts since the last good one
  std::optional<std::chrono::steady_clock::time_point> next_start_;  ///< it is dead until then
  std::chrono::steady_clock::time_point last_look_;
  std::chrono::steady_clock::duration silent_{0};  ///< for this long, of the time in which `step` was called
  OutputLines words_;
};

}  // namespace troupe
