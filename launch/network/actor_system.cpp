#include "launch/network/actor_system.hpp"

#include <caf/io/all.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "launch/hosts/host_facts.hpp"
#include "launch/network/guarded_middleman.hpp"
#include "launch/network/secure_link.hpp"
#include "launch/process/local_address.hpp"

namespace troupe {
namespace {

constexpr std::chrono::seconds kAnswer(30);

caf::expected<CoordinatorActor> connect(caf::actor_system& system, const std::string& host, std::uint16_t port) {
  const auto found = GuardedMiddleman::of(system).connect(
      system.message_types(caf::detail::type_list<CoordinatorActor>{}), host, port);
  if (!found) return found.error();
  return caf::actor_cast<CoordinatorActor>(*found);
}

}  // namespace

ActorSystemConfig::ActorSystemConfig(bool network, std::optional<JobKeys> keys,
                                     std::function<void(const std::string&)> log) {
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", std::thread::hardware_concurrency() > 4 ? 2 : 1);
  set("logger.console", caf::atom("none"));
  add_wire_messages(*this);
  if (network) {
    load<caf::io::middleman>();
    set("middleman.heartbeat-interval", caf::timespan(std::chrono::milliseconds(200)));  // off by default
    set("middleman.enable-automatic-connections", false);
    const auto shared = keys ? std::make_shared<const JobKeys>(*std::move(keys)) : nullptr;
    module_factories.push_back([shared, log = std::move(log)](caf::actor_system& system) -> caf::actor_system::module* {
      return new GuardedMiddleman(system, shared, log);
    });
  }
}

std::uint16_t publish_coordinator(caf::actor_system& system, const CoordinatorActor& coordinator, std::uint16_t port,
                                  const std::string& name, bool insecure) {
  const auto interface_address = ipv4_address_of(name);
  auto& guarded = GuardedMiddleman::of(system);
  if (!guarded.has_keys() && !insecure && !is_loopback(interface_address)) {
    throw Error(ErrorCode::usage, "coordinator",
                "on " + interface_address + " anybody in that network could steer the job: it has no keys",
                "troupe keys DIR makes some for --keys DIR on every node; --insecure-network does without");
  }
  const auto bound = guarded.publish(caf::actor_cast<caf::strong_actor_ptr>(coordinator),
                                     system.message_types(coordinator), port, interface_address);
  // Any peer could address these two by name.
  system.registry().erase(caf::atom("SpawnServ"));
  system.registry().erase(caf::atom("ConfigServ"));
  return bound;
}

caf::strong_actor_ptr try_coordinator(caf::actor_system& system, const std::string& host, std::uint16_t port) {
  auto coordinator = connect(system, host, port);
  return coordinator ? caf::actor_cast<caf::strong_actor_ptr>(*coordinator) : nullptr;
}

CoordinatorActor connect_coordinator(caf::actor_system& system, const std::string& host, std::uint16_t port,
                                     std::chrono::milliseconds timeout, const std::function<bool()>& stopped) {
  using namespace std::chrono_literals;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::string why;
  const auto says = [&](const char* reason) { return why.find(reason) != std::string::npos; };
  for (auto pause = 10ms; std::chrono::steady_clock::now() < deadline;
       pause = std::min(pause * 2, std::chrono::milliseconds(500))) {
    if (stopped && stopped()) throw Error(ErrorCode::interrupted, "coordinator", "asked to stop");
    try {
      auto coordinator = connect(system, ipv4_address_of(host), port);
      if (coordinator) return *coordinator;
      why = system.render(coordinator.error());
      if (says(kOtherKeys) || says(kOtherVersion)) break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable) throw;
      why = error.report().cause;
    }
    std::this_thread::sleep_for(pause);
  }
  const auto where = host + ":" + std::to_string(port);
  const char* final = says(kOtherKeys) ? kOtherKeys : says(kOtherVersion) ? kOtherVersion : nullptr;
  throw Error(ErrorCode::unavailable, "coordinator",
              final != nullptr
                  ? where + ": " + final
                  : "no answer from " + where + " within " + std::to_string(timeout.count()) + " ms (" + why + ")",
              says(kOtherVersion)           ? "start every node with the same build"
              : says(std::strerror(EMFILE)) ? "raise the limit of open files (ulimit -n)"
              : says("keys") ? "every node takes a copy of the same keys: troupe keys DIR once, --keys DIR on each"
              : says(std::strerror(EADDRNOTAVAIL)) ? "raise the limit of ports (net.ipv4.ip_local_port_range)"
                                                   : "is the launcher running, and is the address right?");
}

std::string ask_to_join(caf::actor_system& system, const CoordinatorActor& coordinator, const std::string& job_id,
                        const std::string& host) {
  std::string why;
  caf::scoped_actor self(system);
  self->request(coordinator, kAnswer, JoinNode{.job_id = job_id, .host = host, .only_asks = true})
      .receive([&](std::string& refusal) { why = std::move(refusal); },
               [&](caf::error& error) { why = system.render(error); });
  return why;
}

RunOfJob run_of(caf::actor_system& system, const CoordinatorActor& coordinator) {
  std::string text, failure;
  caf::scoped_actor self(system);
  self->request(coordinator, kAnswer, GetValue{kRunKey})
      .receive([&](bool, std::string& value) { text = std::move(value); },
               [&](caf::error& error) { failure = system.render(error); });
  if (text.empty()) throw Error(ErrorCode::unavailable, "coordinator", "it did not say which run it is of: " + failure);
  return RunOfJob::from_text(text);
}

}  // namespace troupe
