#pragma once
#include <caf/all.hpp>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/coordinator/coordinator.hpp"
#include "launch/network/job_keys.hpp"

namespace troupe {

/// Why a job may only begin anew from a checkpoint, by the coordinator's last message; nothing if it need not, or was
/// asked to stop.
std::optional<ErrorReport> lost_state(const std::optional<JobOver>& over, int stop_signal);

/// A node agent's side of the coordinator: an actor that hands commands to the agent's main thread. That thread polls,
/// forks and waits, so it can't be an actor itself. Finds a restarted coordinator by itself.
class AgentLink {
 public:
  struct Options {
    std::string job_id, host;
    std::string coordinator_host = "127.0.0.1";
    std::uint16_t coordinator_port = 0;
    std::optional<JobKeys> keys;                 ///< none: no TLS
    std::chrono::milliseconds patience{60'000};  ///< without a coordinator: `lost` then
  };
  using Command = std::variant<StartRank, KillRank, JobOver>;

  AgentLink(Options options, std::vector<ProcessId> started);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  int fd() const noexcept { return wake_; }  ///< readable when there are commands
  std::vector<Command> take();
  /// The processes that run now, for a coordinator that was restarted.
  void running(std::vector<ProcessId> processes);
  void exited(const ProcessId& process, int wait_status);
  /// The processes that run now are to leave the job.
  void leave(const std::string& why);
  bool lost() const;  ///< the coordinator did not come back

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  int wake_ = -1;
};

}  // namespace troupe
