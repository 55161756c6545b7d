#pragma once
#include <caf/all.hpp>
#include <caf/io/all.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "launch/network/asio.hpp"
#include "launch/network/job_keys.hpp"

namespace troupe {

/// Publishes actors behind a Gate and, if the process has keys, reaches others' through secure links. It is a module of
/// CAF's actor system, instead of CAF's own TLS, which has no deadline for a peer's handshake and does not check later
/// data. Its connections are BufferedScribes. Has its own thread from the first use on.
class GuardedMiddleman : public caf::actor_system::module {
 public:
  GuardedMiddleman(caf::actor_system& system, std::shared_ptr<const JobKeys> keys,
                   std::function<void(const std::string&)> log);
  ~GuardedMiddleman() override;

  void start() override;
  void stop() override;
  void init(caf::actor_system_config&) override {}
  id_t id() const override { return openssl_manager; }
  void* subtype_ptr() override { return this; }

  /// The one of this system, which must have been made with a network.
  static GuardedMiddleman& of(caf::actor_system& system);

  bool has_keys() const noexcept { return keys_ != nullptr; }

  /// Returns the port. Once. Throws Error(unavailable).
  std::uint16_t publish(const caf::strong_actor_ptr& actor, std::set<std::string> interface, std::uint16_t port,
                        const std::string& address);
  /// `patience`: for the peer to get through TLS and the proof, in a job with keys; the last call's if several are
  /// under way.
  caf::expected<caf::strong_actor_ptr> connect(const std::set<std::string>& interface, const std::string& host,
                                               std::uint16_t port, std::chrono::milliseconds patience);

 private:
  struct Thread;
  class Middleman;

  Thread& thread();

  caf::actor_system& system_;
  std::shared_ptr<const JobKeys> keys_;
  std::function<void(const std::string&)> log_;
  std::atomic<std::chrono::milliseconds> patience_{};  // CAF's message for a connection has no place for it
  std::once_flag started_;
  std::unique_ptr<Thread> thread_;
  caf::io::middleman_actor actor_;
};

}  // namespace troupe
