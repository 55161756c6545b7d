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

using namespace std::chrono_literals;

constexpr std::chrono::seconds kAnswer(30);
constexpr int kTriesOfFirstPort = 3, kOtherPorts = 3;
constexpr std::chrono::milliseconds kFirstPause{10}, kLongestPause{100};
constexpr auto kFirstPortAlone = 1s;  // a coordinator that is started again at once needs less
// For a peer's handshake. A stranger that says nothing costs the first of them; it may take longer where much is going
// on.
constexpr std::chrono::milliseconds kFirstPatience{1'000}, kLongestPatience{5'000};
constexpr auto kOtherKeysFor = 3s;  // another job's coordinator has the port, and this one's moves: two tries, 0.7 s

caf::expected<CoordinatorActor> connect(caf::actor_system& system, const std::string& host, std::uint16_t port,
                                        std::chrono::milliseconds patience) {
  const auto found = GuardedMiddleman::of(system).connect(
      system.message_types(caf::detail::type_list<CoordinatorActor>{}), host, port, patience);
  if (!found) return found.error();
  return caf::actor_cast<CoordinatorActor>(*found);
}

// For a job's coordinator: at its port, and in a job that has keys after a while at the others, too. (Without keys,
// another job's coordinator would do.)
class Search {
 public:
  Search(caf::actor_system& system, const std::string& host, std::uint16_t port)
      : system_(system), host_(host), port_(port), elsewhere_(GuardedMiddleman::of(system).has_keys()) {}

  /// Nothing: not found in `patience`, or its peer has had other keys for `other_keys_for`, or is of another version,
  /// or `stopped` says so.
  CoordinatorActor go_on(std::chrono::milliseconds patience, std::chrono::milliseconds other_keys_for,
                         const std::function<bool()>& stopped) {
    const auto start = Clock::now();
    auto deadline = start + patience, elsewhere_from = start + kFirstPortAlone;
    for (auto pause = kFirstPause; Clock::now() < deadline; pause = std::min(pause * 2, kLongestPause)) {
      if (stopped && stopped()) break;
      const auto tries = elsewhere_ && Clock::now() >= elsewhere_from ? kTriesOfFirstPort + tries_elsewhere_++ : 0;
      if (auto coordinator = try_port(coordinator_port(port_, tries))) return coordinator;
      if (says(kOtherVersion)) break;
      if (says(kOtherKeys)) {
        elsewhere_from = std::min(elsewhere_from, Clock::now());
        deadline = std::min(deadline, Clock::now() + other_keys_for);
      }
      std::this_thread::sleep_for(pause);
    }
    return {};
  }
  /// Of the last try at the job's port.
  const std::string& why() const { return why_; }

 private:
  using Clock = std::chrono::steady_clock;
  bool says(const char* reason) const { return why_.find(reason) != std::string::npos; }

  CoordinatorActor try_port(std::uint16_t port) {
    std::string why;
    const auto began = Clock::now();
    try {
      auto coordinator = connect(system_, ipv4_address_of(host_), port, patience_);
      if (coordinator) return *coordinator;
      why = system_.render(coordinator.error());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable) throw;
      why = error.report().cause;
    }
    if (Clock::now() - began > patience_) patience_ = std::min(patience_ * 2, kLongestPatience);
    if (port == port_) why_ = why;
    return {};
  }

  caf::actor_system& system_;
  const std::string host_;
  const std::uint16_t port_;
  const bool elsewhere_;
  int tries_elsewhere_ = 0;
  std::chrono::milliseconds patience_ = kFirstPatience;
  std::string why_;
};

}  // namespace

std::uint16_t coordinator_port(std::uint16_t port, int tries) {
  const int turn = tries < kTriesOfFirstPort ? kOtherPorts : (tries - kTriesOfFirstPort) % (kOtherPorts + 1);
  if (turn == kOtherPorts) return port;
  const int other = 2 + turn;  // the one after it is a program's MASTER_PORT
  return static_cast<std::uint16_t>(port + other <= 65'535 ? port + other : port - other);
}

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
                "on " + interface_address + " any process in that network can control the job: it has no keys",
                "make keys with troupe keys DIR and give --keys DIR on every node, or use --insecure-network");
  }
  const auto bound = guarded.publish(caf::actor_cast<caf::strong_actor_ptr>(coordinator),
                                     system.message_types(coordinator), port, interface_address);
  // Any peer could address these two by name.
  system.registry().erase(caf::atom("SpawnServ"));
  system.registry().erase(caf::atom("ConfigServ"));
  return bound;
}

caf::strong_actor_ptr find_coordinator(caf::actor_system& system, const std::string& host, std::uint16_t port,
                                       std::chrono::milliseconds patience, const std::function<bool()>& stopped) {
  return caf::actor_cast<caf::strong_actor_ptr>(Search(system, host, port).go_on(patience, patience, stopped));
}

CoordinatorActor connect_coordinator(caf::actor_system& system, const std::string& host, std::uint16_t port,
                                     std::chrono::milliseconds timeout, const std::function<bool()>& stopped) {
  Search search(system, host, port);
  auto coordinator = search.go_on(timeout, kOtherKeysFor, stopped);
  if (coordinator) return coordinator;
  if (stopped && stopped()) throw Error(ErrorCode::interrupted, "coordinator", "asked to stop");
  const auto says = [&](const char* reason) { return search.why().find(reason) != std::string::npos; };
  const auto where = host + ":" + std::to_string(port);
  const char* final = says(kOtherKeys) ? kOtherKeys : says(kOtherVersion) ? kOtherVersion : nullptr;
  throw Error(ErrorCode::unavailable, "coordinator",
              final != nullptr ? where + ": " + final
                               : "no answer from " + where + " within " + std::to_string(timeout.count()) + " ms (" +
                                     search.why() + ")",
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
  if (text.empty())
    throw Error(ErrorCode::unavailable, "coordinator", "it did not say which run it belongs to: " + failure);
  return RunOfJob::from_text(text);
}

}  // namespace troupe
