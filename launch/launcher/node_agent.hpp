#pragma once
#include <signal.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launch/launcher/rank_processes.hpp"
#include "launch/launcher/stop_patience.hpp"
#include "launch/network/agent_link.hpp"
#include "launch/process/stop_signals.hpp"

namespace troupe {

/// One host's part of a job: its rank processes, as the coordinator wants them. A part of a poll loop: the launcher's
/// if the job is on one machine, else that of `troupe node`. Main thread.
class NodeAgent {
 public:
  using Clock = std::chrono::steady_clock;
  /// Starts the ranks. With recovery the coordinator handles a rank's death; it is not the end.
  explicit NodeAgent(const RankProcessOptions& options);

  void add_fds(std::vector<pollfd>& fds) const;
  void step();
  /// The ranks finish their step, or are killed at once.
  void asked_to_stop(const StopSignals::Request& request);
  /// This host's ranks leave the job between two steps, and the others go on; without recovery they stop.
  void asked_to_leave(const StopSignals::Request& request, const std::string& why);
  void kill_all() { processes_.signal_all(SIGKILL); }
  /// No rank is left and none will come.
  bool done() const;
  /// The job's state is lost: it may begin anew from a checkpoint.
  std::optional<ErrorReport> state_lost() const { return lost_state(over_, stop_signal_); }
  /// The exit code, with the reason on standard error.
  int verdict();
  void clear_bar() { processes_.clear_bar(); }

 private:
  bool ends_here() const { return stop_signal_ != 0 || !leaves_.empty(); }
  void exited(const ProcessId& process, int wait_status);
  void obey(const AgentLink::Command& command);
  void say_end() const;

  RankProcessOptions options_;
  RankProcesses processes_;
  std::optional<AgentLink> link_;
  std::optional<JobOver> over_;
  std::optional<Clock::time_point> end_by_;  // the job has failed: SIGTERM at this time, SIGKILL two seconds later
  std::string leaves_;                       // why
  std::optional<Clock::time_point> leave_at_;
  int stop_signal_ = 0;
  int at_once_ = 0;  // the signal that asked for the end of all ranks at once
  StopPatience patience_;
  Clock::time_point last_exit_ = Clock::now();
};

}  // namespace troupe
