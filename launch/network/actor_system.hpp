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

/// CAF's configuration for a process of a job. Work sharing with one worker: CAF's default work stealing burns 1 % of a
/// core per idle system and wakes later. `network`: the process exchanges messages with others;
/// with `keys` only with those that have the job's, over mutual TLS. A gate's lines go to `log`, on its thread.
class ActorSystemConfig : public caf::actor_system_config {
 public:
  explicit ActorSystemConfig(bool network, std::optional<JobKeys> keys = {},
                             std::function<void(const std::string&)> log = {});
};

/// Publishes a coordinator behind a Gate on `interface_address`, a name or an IPv4 address. Returns the port. Throws
/// Error(unavailable), and Error(usage) for an address of the network where the system has no keys, unless `insecure`.
std::uint16_t publish_coordinator(caf::actor_system& system, const CoordinatorActor& coordinator, std::uint16_t port,
                                  const std::string& interface_address, bool insecure = false);

/// Connects to the coordinator, once. Empty: nobody answers.
caf::strong_actor_ptr try_coordinator(caf::actor_system& system, const std::string& host, std::uint16_t port);

/// Connects to the coordinator, retrying until `timeout`. Throws Error(unavailable), Error(usage) for an IPv6 address,
/// Error(interrupted) once `stopped` says so.
CoordinatorActor connect_coordinator(caf::actor_system& system, const std::string& host, std::uint16_t port,
                                     std::chrono::milliseconds timeout, const std::function<bool()>& stopped = {});

/// Asks a coordinator whether a node of this name may join. Returns why not; empty: it may.
std::string ask_to_join(caf::actor_system& system, const CoordinatorActor& coordinator, const std::string& job_id,
                        const std::string& host);

/// Asks a coordinator for its run. Throws Error(unavailable).
RunOfJob run_of(caf::actor_system& system, const CoordinatorActor& coordinator);

}  // namespace troupe
