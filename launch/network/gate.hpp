#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/network/asio.hpp"
#include "launch/network/job_keys.hpp"

namespace troupe {

struct GateOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;                     ///< 0: any
  std::optional<JobKeys> keys;                ///< none: plain TCP, and only frames are checked
  std::optional<uid_t> owner;                 ///< on loopback: only this user's processes come in; none: all users'
  std::vector<std::string> messages;          ///< names of the types that peers may send
  std::string inside;                         ///< the name of the local socket (abstract, Linux) on which CAF listens
  std::chrono::milliseconds patience{5'000};  ///< for a peer to get through TLS, the proof and CAF's own handshake
  std::size_t waiting = 256;                  ///< peers on their way through; the oldest makes room
  std::size_t waiting_per_address = 64;
  std::function<void(const std::string&)> log;  ///< lines for the user; the io_context's thread
};

/// Stands before CAF's port. Admits a peer that shows a certificate of the job's authority by mutual TLS 1.3, proves
/// the job's token in time, and then speaks CAF's protocol. No byte of another peer gets to CAF. Memory is bounded by
/// `waiting`. Runs on the thread of `io`, which must not be stopped before the gate is destroyed and the thread has
/// ended.
class Gate {
 public:
  /// Listens. Throws Error(unavailable).
  Gate(asio::io_context& io, GateOptions options);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  std::uint16_t port() const noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace troupe
