#pragma once
#include <caf/all.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/coordinator/coordinator.hpp"
#include "launch/network/job_keys.hpp"
#include "launch/process/run_of_job.hpp"

namespace troupe {

/// CAF's configuration for a process of a job. Work sharing with one worker: CAF's default, work stealing, burns 1 % of
/// a core per idle system and wakes later. `network`: the process exchanges messages with others; with `keys` only with
/// those that have the job's, over mutual TLS. A gate's lines go to `log`, on its thread.
class ActorSystemConfig : public caf::actor_system_config {
 public:
  explicit ActorSystemConfig(bool network, std::optional<JobKeys> keys = {},
                             std::function<void(const std::string&)> log = {});
};

/// Publishes a coordinator behind a Gate on `interface_address`, a name or an IPv4 address. Returns the port. Throws
/// Error(unavailable), and Error(usage) for an address of the network if the system has no keys, unless `insecure`.
std::uint16_t publish_coordinator(caf::actor_system& system, const CoordinatorActor& coordinator, std::uint16_t port,
                                  const std::string& interface_address, bool insecure = false);

/// The port of a job's coordinator after `tries` failed tries, one after the other, to listen there or to find it.
/// First it is `port`, three times, as its former process may still have it. After that another process has it, and the
/// tries go round three other ports, which all hosts of a job know without a message, and `port` again.
std::uint16_t coordinator_port(std::uint16_t port, int tries);
/// The duration of one round of these if a silent process has one of them.
inline constexpr std::chrono::milliseconds kLongestSearchRound{10'000};

/// Looks for the coordinator at `port` and, in a job with keys, after a second at coordinator_port's others, too.
/// Nothing: not found within `patience`, or `stopped` is true. Blocks.
caf::strong_actor_ptr find_coordinator(caf::actor_system& system, const std::string& host, std::uint16_t port,
                                       std::chrono::milliseconds patience, const std::function<bool()>& stopped);

/// The same for one that has to be there. Throws Error(unavailable), Error(usage) for an IPv6 address,
/// Error(interrupted) once `stopped` is true.
CoordinatorActor connect_coordinator(caf::actor_system& system, const std::string& host, std::uint16_t port,
                                     std::chrono::milliseconds timeout, const std::function<bool()>& stopped = {});

/// Asks a coordinator whether a node of this name may join. Returns the reason if not; empty: it may.
std::string ask_to_join(caf::actor_system& system, const CoordinatorActor& coordinator, const std::string& job_id,
                        const std::string& host);

/// Asks a coordinator for its run. Throws Error(unavailable).
RunOfJob run_of(caf::actor_system& system, const CoordinatorActor& coordinator);

}  // namespace troupe
